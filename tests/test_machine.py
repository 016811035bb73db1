"""The chunked-prefill machine: it lets right poolers be and catches wrong ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fuzz.machine import chunked_prefill_machine
from impl.builtin import BUILTIN
from impl.config import PoolerConfig, PoolFn, Subject, SubjectError

HOLDS = settings(deadline=None, derandomize=True, max_examples=30, stateful_step_count=30)
# The first failure will do: shrinking it costs time and shows nothing more.
FAILS = settings(HOLDS, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)

Chunks = list[torch.Tensor]


@pytest.mark.parametrize("subject", BUILTIN.values(), ids=lambda subject: subject.name)
def test_built_in_poolers_hold(subject: Subject) -> None:
    run_state_machine_as_test(chunked_prefill_machine(subject), settings=HOLDS)


def keep(chunk: torch.Tensor) -> torch.Tensor:
    """The right way to keep a chunk of an unfinished request."""
    return chunk.clone()


def join(chunks: Chunks, states: Any) -> torch.Tensor:
    """The right way to end a request."""
    rows = torch.cat(chunks)
    states.clean()
    return rows


def join_in_reverse(chunks: Chunks, states: Any) -> torch.Tensor:
    return join(chunks[::-1], states)


def join_without_clearing(chunks: Chunks, states: Any) -> torch.Tensor:
    return torch.cat(chunks)


def join_last_as_view(chunks: Chunks, states: Any) -> torch.Tensor:
    return chunks[0] if len(chunks) == 1 else join(chunks, states)


def join_in_half_precision(chunks: Chunks, states: Any) -> torch.Tensor:
    return join(chunks, states).half()


def cut(hidden_states: torch.Tensor, metadata: Any) -> Iterator[tuple[torch.Tensor, Any, bool]]:
    """Each request's rows in this step, its state, and whether they are its last."""
    cursor = metadata.get_pooling_cursor()
    chunks = hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())
    yield from zip(chunks, metadata.pooling_states, cursor.get_finished_mask(), strict=True)


def pooler(
    keep: Callable[[torch.Tensor], torch.Tensor] = keep, join: Callable[[Chunks, Any], torch.Tensor] = join
) -> PoolFn:
    """ALL pooling that keeps a chunk, and joins the chunks of a finished request, in the given ways."""

    def pool(hidden_states: torch.Tensor, metadata: Any) -> Sequence[torch.Tensor | None]:
        outputs: list[torch.Tensor | None] = []
        for chunk, states, finished in cut(hidden_states, metadata):
            if finished:
                outputs.append(join([*states.hidden_states_cache, chunk], states))
            else:
                states.hidden_states_cache.append(keep(chunk))
                outputs.append(None)
        return outputs

    return pool


def outputs_for_the_wrong_requests() -> PoolFn:
    """Each request's result given to the one before it in the batch."""
    right = pooler()

    def pool(hidden_states: torch.Tensor, metadata: Any) -> Sequence[torch.Tensor | None]:
        outputs = list(right(hidden_states, metadata))
        return [*outputs[1:], *outputs[:1]]

    return pool


def chunks_kept_beside_the_states() -> PoolFn:
    """Rows kept in the pooler itself, where the caller's cleaning doesn't reach them."""
    kept: dict[int, Chunks] = {}

    def pool(hidden_states: torch.Tensor, metadata: Any) -> Sequence[torch.Tensor | None]:
        outputs: list[torch.Tensor | None] = []
        for chunk, states, finished in cut(hidden_states, metadata):
            mine = kept.setdefault(id(states), [])
            mine.append(chunk.clone())
            outputs.append(torch.cat(kept.pop(id(states))) if finished else None)
        return outputs

    return pool


def made_of(build: Callable[[], PoolFn]) -> Subject:
    def built(config: PoolerConfig, level: str) -> PoolFn:
        return build()

    return Subject("of the test", built, supports=frozenset({"ALL"}))


def test_the_right_way_holds() -> None:
    """So that what fails below fails by the one thing that is wrong in it."""
    run_state_machine_as_test(chunked_prefill_machine(made_of(pooler)), settings=HOLDS)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        pytest.param(lambda: pooler(keep=lambda chunk: chunk), "the state of request .* holds", id="kept as views"),
        pytest.param(lambda: pooler(join=join_in_reverse), "should be its rows", id="joined in reverse"),
        pytest.param(lambda: pooler(join=join_without_clearing), "should be empty", id="not cleared"),
        pytest.param(lambda: pooler(join=join_last_as_view), "output should stay", id="promised output a view"),
        pytest.param(lambda: pooler(join=join_in_half_precision), "in torch.float16", id="another dtype"),
        pytest.param(outputs_for_the_wrong_requests, "but is", id="given to the neighbour"),
        pytest.param(chunks_kept_beside_the_states, "should be its rows", id="kept beside the states"),
    ],
)
def test_bad_poolers_are_caught(build: Callable[[], PoolFn], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        run_state_machine_as_test(chunked_prefill_machine(made_of(build)), settings=FAILS)


def test_a_subject_without_all_pooling_is_refused() -> None:
    subject = Subject("last only", lambda config, level: pooler(), supports=frozenset({"LAST"}))
    with pytest.raises(SubjectError, match=r"last only serves LAST .* needs ALL at level method"):
        chunked_prefill_machine(subject)
