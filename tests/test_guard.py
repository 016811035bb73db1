"""`guard` puts the contracts into a running engine: each call is checked, and the break is named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from impl.config import PoolerConfig
from impl.hostsplit import HostSplit
from oracle.contracts import ContractError
from oracle.guard import guard
from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates
from oracle.scenario import PoolingType

CPU = torch.device("cpu")
Pool = Callable[[torch.Tensor, Any], Any]


class Engine:
    """Two requests, a and b, and whatever the caller does with them."""

    def __init__(self, prompt_lens: list[int], task: str = "token_embed") -> None:
        self.prompt_lens = prompt_lens
        self.states = [PoolingStates() for _ in prompt_lens]
        self.params = [PoolingParams(task=task) for _ in prompt_lens]

    def step(self, pool: Pool, scheduled: list[int], seq_lens: list[int], rows: int | None = None) -> Any:
        metadata = PoolingMetadata(torch.tensor(self.prompt_lens), None, None, self.params, self.states)
        metadata.build_pooling_cursor(np.array(scheduled), torch.tensor(seq_lens), CPU)
        self.metadata = metadata
        return pool(torch.randn(sum(scheduled) if rows is None else rows, 3), metadata)


def right(pooling_type: PoolingType = "ALL") -> Pool:
    return HostSplit(PoolerConfig()).method(pooling_type)  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooling_type", ["ALL", "LAST", "CLS", "MEAN"])
def test_a_right_pooler_passes_through(pooling_type: PoolingType) -> None:
    task = "token_embed" if pooling_type == "ALL" else "embed"
    outputs = Engine([2, 3], task).step(guard(right(pooling_type), pooling_type), [2, 3], [2, 3])
    assert len(outputs) == 2


def test_chunks_are_followed_over_steps_and_a_restart() -> None:
    engine, pool = Engine([4, 3]), guard(right(), "ALL")
    assert engine.step(pool, [2, 3], [2, 3])[0] is None
    engine.states[0].clean()  # preempted: the request starts over
    engine.step(pool, [3, 1], [3, 1])
    assert engine.step(pool, [1, 2], [4, 3])[0].shape == (4, 3)


def test_the_caller_that_never_set_the_counts_gets_the_contract_by_name() -> None:
    engine, pool = Engine([2, 3]), guard(right(), "ALL")
    engine.step(pool, [2, 3], [2, 3])
    del engine.metadata.get_pooling_cursor().num_scheduled_tokens_cpu
    with pytest.raises(ContractError, match=r"^cursor-complete: pooling_cursor.num_scheduled_tokens_cpu is not set"):
        pool(torch.randn(5, 3), engine.metadata)


@pytest.mark.parametrize(
    ("scheduled", "seq_lens", "rows", "message"),
    [
        ([2, 0], [2, 3], 2, "progress: request #1 is in the batch with 0 scheduled tokens"),
        ([2, 3], [2, 4], 5, "progress: request #1 has computed 4 tokens of a prompt of 3"),
        ([2, 1], [2, 3], 3, "progress: request #1 has 2 tokens computed before this step, but its pooler was handed 0"),
        ([2, 3], [2, 3], 4, "rows-cover: the spans go from row 0 to 4"),
        ([2, 3], [2, 3], 6, "rows-cover: hidden_states has 6 rows, but the spans cover rows 0 to 4"),
    ],
)
def test_a_wrong_caller_is_named(scheduled: list[int], seq_lens: list[int], rows: int, message: str) -> None:
    with pytest.raises(ContractError) as broken:
        Engine([2, 3]).step(guard(right(), "ALL"), scheduled, seq_lens, rows)
    assert message in str(broken.value)


@pytest.mark.parametrize(
    ("wrong", "contract"),
    [
        (lambda rows, metadata: [rows[:2]], "one-output-per-request"),
        (lambda rows, metadata: [rows[:2], None], "none-iff-unfinished"),
        (lambda rows, metadata: [rows[:2], rows[1:3]], "row-count"),
        (lambda rows, metadata: [rows[:2].double(), rows[2:]], "dtype-and-device"),
        (lambda rows, metadata: [rows[1:3], rows[2:]], "values"),
        (lambda rows, metadata: [rows[:2].clone(), rows[2:].clone(), rows.zero_()][:2], "inputs-unchanged"),
    ],
)
def test_a_wrong_pooler_is_named(wrong: Pool, contract: str) -> None:
    with pytest.raises(ContractError) as broken:
        Engine([2, 3]).step(guard(wrong, "ALL"), [2, 3], [2, 3])
    assert broken.value.violation.contract == contract


def test_stale_rows_after_a_restart_are_caught() -> None:
    # The state is not cleared on preemption, so the old chunk comes before the recomputed rows.
    engine, pool = Engine([3, 1]), guard(right(), "ALL")
    engine.step(pool, [2, 1], [2, 1])
    with pytest.raises(ContractError, match="state-is-fresh-at-the-start: request #0 starts at its first token"):
        engine.step(pool, [3, 1], [3, 1])


class AllPool(torch.nn.Module):
    """Wrong, and called as vLLM calls its own."""

    def get_supported_tasks(self) -> set[str]:
        return {"token_embed"}

    def forward(self, rows: torch.Tensor, metadata: Any) -> list[torch.Tensor]:
        return [rows[1:3], rows[2:]]


def test_a_module_stays_a_module_and_its_class_name_says_what_it_computes() -> None:
    model = torch.nn.Module()
    model.pooling = AllPool()
    model.pooling = guard(model.pooling)
    assert model.pooling.get_supported_tasks() == {"token_embed"}
    with pytest.raises(ContractError, match="values: request #0 got in row 0 row 1 of this step"):
        Engine([2, 3]).step(model.pooling, [2, 3], [2, 3])


def test_without_a_pooling_type_the_structure_alone_is_checked() -> None:
    pool = guard(lambda rows, metadata: [rows[1:3], rows[2:]])
    assert len(Engine([2, 3]).step(pool, [2, 3], [2, 3])) == 2
    with pytest.raises(ContractError, match="one-output-per-request"):
        Engine([2, 3]).step(guard(lambda rows, metadata: [rows]), [2, 3], [2, 3])


def test_a_break_may_be_told_and_passed_over() -> None:
    told: list[str] = []
    outputs = iter([[None], [torch.zeros(4, 3)], [torch.zeros(4, 3)]])
    pool = guard(lambda rows, metadata: next(outputs), "ALL", lambda broken: told.append(broken.violation.contract))
    engine = Engine([4])
    assert engine.step(pool, [2], [2], rows=3) == [None]
    # Nobody knows what it was handed before, so nothing is said of it until it starts over.
    engine.step(pool, [2], [4])
    assert told == ["rows-cover"]
    engine.step(pool, [4], [4])
    assert told == ["rows-cover", "values"]


def test_a_view_handed_out_under_async_scheduling_is_named() -> None:
    class Views(AllPool):
        clone_finished = True

        def forward(self, rows: torch.Tensor, metadata: Any) -> list[torch.Tensor]:
            return [rows[:2], rows[2:]]

    with pytest.raises(ContractError, match="outputs-own-their-rows: request #0's output is a view"):
        Engine([2, 3]).step(guard(Views(), "ALL"), [2, 3], [2, 3])
