"""Each contract at its edge: what is just right holds, what is just wrong is told, and in which words."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch

from oracle import contracts
from oracle.approx import Approx
from oracle.contracts import ANYTHING, Call, Outcome, named
from oracle.contracts.runs import LADDER
from oracle.device.record import Crossing, Record
from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates

CPU: Final = torch.device("cpu")
HIDDEN: Final = 3


def called(
    scheduled: Sequence[int] = (2, 3),
    seq_lens: Sequence[int] | None = None,
    prompt_lens: Sequence[int] | None = None,
    rows: int | None = None,
    **known: Any,
) -> Call:
    """A call for requests a, b, ... whose whole prompts are in the step, unless said otherwise."""
    seq_lens = scheduled if seq_lens is None else seq_lens
    prompt_lens = seq_lens if prompt_lens is None else prompt_lens
    params = [PoolingParams(task="token_embed") for _ in scheduled]
    states = [PoolingStates() for _ in scheduled]
    metadata = PoolingMetadata(torch.tensor(prompt_lens), None, None, params, states)
    metadata.build_pooling_cursor(np.array(scheduled), torch.tensor(seq_lens), CPU)
    num_rows = sum(scheduled) if rows is None else rows
    hidden_states = torch.arange(1.0, 1 + num_rows * HIDDEN).reshape(num_rows, HIDDEN)
    return Call(hidden_states, metadata, "abcdefgh"[: len(scheduled)], **known)


def outcome(call: Call, outputs: Any, **known: Any) -> Outcome:
    """What came of a call; by default each request should get its own rows."""
    own = list(call.hidden_states.clone().split_with_sizes(call.scheduled)) if not call.spare_rows else []
    defaults: dict[str, Any] = {
        "expected": own,
        "hidden_states_before": call.hidden_states.clone(),
        "cursor_before": call.cursor_values(),
        "params_before": [replace(params) for params in call.metadata.pooling_params],
        "kept_rows": call.prompt_lens,
        "must_own_outputs": False,
        "origin": lambda row: f"a row that begins with {row.flatten()[0]:g}",
        "finished": [True] * len(call.names),
    }
    return Outcome(call, outputs, **(defaults | known))


def right_outputs(call: Call) -> list[torch.Tensor]:
    return [rows.clone() for rows in call.hidden_states.split_with_sizes(call.scheduled)]


def said(contract: str, *about: Any) -> str | None:
    """What a contract says."""
    message: str | None = named(contract).check(*about)
    return message


def moved(call: Call, field: str, values: Sequence[int]) -> Call:
    """The call with other values in a field of the cursor."""
    cursor = call.metadata.pooling_cursor
    setattr(cursor, field, torch.tensor(values))
    return Call(call.hidden_states, call.metadata, call.names, call.computed_before, call.spare_rows)


# The caller's duties.


def test_a_right_call_breaks_nothing() -> None:
    for call in (
        called(),
        called([1, 1], [2, 1], [4, 1], computed_before=[1, 0]),
        called([2], rows=4, spare_rows=True),
    ):
        assert contracts.first_broken(contracts.BEFORE, call) is None


def test_the_cursor_has_every_field() -> None:
    call = called()
    cursor = call.metadata.pooling_cursor
    cursor.seq_lens_cpu = [2, 3]
    assert said("cursor-complete", call) == (
        "pooling_cursor.seq_lens_cpu is a list, but should be a tensor with one integer a request"
    )
    for tensor, told in (
        (torch.tensor([2.0, 3.0]), "dtype torch.float32 and 1 dimensions"),
        (torch.tensor([[2, 3]]), "dtype torch.int64 and 2 dimensions"),
        (torch.tensor([2, 3], dtype=torch.int16), "dtype torch.int16 and 1 dimensions"),
    ):
        cursor.seq_lens_cpu = tensor
        assert told in str(said("cursor-complete", call))
    for dtype in (torch.int32, torch.int64):
        cursor.seq_lens_cpu = torch.tensor([2, 3], dtype=dtype)
        assert said("cursor-complete", call) is None
    del cursor.seq_lens_cpu
    assert "seq_lens_cpu is not set" in str(said("cursor-complete", call))
    call.metadata.pooling_cursor = None
    assert said("cursor-complete", call) == "pooling_cursor is not set; call build_pooling_cursor before pooling"


def test_an_empty_tensor_of_floats_is_a_field_without_requests() -> None:
    call = called([])
    call.metadata.pooling_cursor.seq_lens_cpu = torch.tensor([])
    assert said("cursor-complete", call) is None


def test_host_fields_lie_on_the_host() -> None:
    call = called()
    call.metadata.pooling_cursor.seq_lens_cpu = torch.empty(2, dtype=torch.int64, device="meta")
    assert said("host-fields-on-host", call) == "pooling_cursor.seq_lens_cpu lies on meta, but should lie on the host"


def test_every_field_has_an_entry_a_request() -> None:
    told = str(said("lengths-agree", moved(called(), "last_token_indices_gpu", [1])))
    assert told == "last_token_indices_gpu has 1 entries for 2 requests (a, b)"
    call = called()
    call.metadata.prompt_lens = torch.tensor([2, 3, 4])
    assert said("lengths-agree", call) == "prompt_lens has 3 entries for 2 requests (a, b)"
    call = called()
    call.metadata.pooling_states.pop()
    assert said("lengths-agree", call) == "pooling_states has 1 entries for 2 requests (a, b)"


def test_counts_are_the_lengths_of_spans() -> None:
    told = said("scheduled-tokens-match-spans", moved(called(), "num_scheduled_tokens_cpu", [2, 4]))
    assert told == "request b has 4 scheduled tokens but spans rows 2 to 4, which are 3"


@pytest.mark.parametrize(("first", "kind"), [(3, "a gap"), (1, "an overlap")])
def test_rows_begin_where_the_ones_before_end(first: int, kind: str) -> None:
    told = said("contiguity", moved(called(), "first_token_indices_gpu", [0, first]))
    assert told == f"request b begins at row {first} but should begin at row 2, after request a: {kind}"


def test_the_rows_are_those_of_the_spans() -> None:
    assert said("rows-cover", called([])) is None
    assert "go from row 0 to 4 (request b), but hidden_states has 4 rows" in str(said("rows-cover", called(rows=4)))
    assert "has 6 rows, but the spans cover rows 0 to 4" in str(said("rows-cover", called(rows=6)))
    assert said("rows-cover", called(rows=6, spare_rows=True)) is None
    assert "go from row -1" in str(said("rows-cover", moved(called(), "first_token_indices_gpu", [-1, 2])))
    late = moved(called([2], rows=3), "first_token_indices_gpu", [1])
    assert "spans cover rows 1 to 2" in str(said("rows-cover", moved(late, "last_token_indices_gpu", [2])))


def test_each_request_goes_on_where_it_stopped() -> None:
    assert said("progress", called([1], [1], [1], computed_before=[0])) is None
    told = said("progress", called([1, 0], [1, 2], [1, 3]))
    assert told == "request b is in the batch with 0 scheduled tokens, but should have at least 1"
    assert said("progress", called([1], [3], [2])) == "request a has computed 3 tokens of a prompt of 2"
    told = said("progress", called([1], [3], [4], computed_before=[1]))
    assert told == ("request a had 1 tokens computed before this step, but seq_lens minus the scheduled tokens says 2")


def test_states_are_not_shared() -> None:
    call = called()
    call.metadata.pooling_states[1] = call.metadata.pooling_states[0]
    assert said("one-state-per-request", call) == "requests a and b share one pooling state"


@pytest.mark.parametrize(("rows", "told"), [(1, "1 row;"), (2, "2 rows;"), (0, "0 rows;")])
def test_a_state_is_empty_at_the_start(rows: int, told: str) -> None:
    call = called([2], [2], [4])
    call.states[0].hidden_states_cache.append(torch.zeros(rows, HIDDEN))
    assert told in str(said("state-is-fresh-at-the-start", call))
    later = called([2], [3], [4])
    later.states[0].hidden_states_cache.append(torch.zeros(1, HIDDEN))
    assert said("state-is-fresh-at-the-start", later) is None


def test_numbers_without_rows_are_held_in_a_state_too() -> None:
    call = called([2], [2], [4])
    call.states[0].extra = {"sum": (torch.tensor(1.0), np.ones(2))}
    assert "still holds 2 rows" in str(said("state-is-fresh-at-the-start", call))


@pytest.mark.parametrize(
    ("refusal", "raised", "told"),
    [
        ("", "", None),
        ("too wide", "ValueError", None),
        ("too wide", "", "request a's params were accepted, but should be refused: too wide"),
        ("", "ValueError", "request a's params were refused, but can be delivered: ValueError"),
    ],
)
def test_params_are_refused_if_and_only_if_they_should_be(refusal: str, raised: str, told: str | None) -> None:
    assert said("refuses-impossible-params", "a", refusal, raised) == told


def test_a_cursor_keeps_its_values() -> None:
    assert said("cursor-is-a-snapshot", "seq_lens_cpu", [1, 2], (1, 2)) is None
    told = said("cursor-is-a-snapshot", "seq_lens_cpu", [1, 2], [1, 9])
    assert (
        told
        == "seq_lens_cpu was [1, 2] when the cursor was built, but became [1, 9] when the caller rewrote its own array"
    )


# The pooler's duties.


def test_a_right_result_breaks_nothing() -> None:
    call = called()
    assert contracts.first_broken(contracts.AFTER, outcome(call, right_outputs(call))) is None


def test_there_is_one_output_a_request() -> None:
    call = called()
    told = said("one-output-per-request", outcome(call, dict.fromkeys("ab")))
    assert told == "got a dict, but should get a list or a tensor, one entry a request"
    assert said("one-output-per-request", outcome(call, torch.zeros(2, HIDDEN))) is None
    assert said("one-output-per-request", outcome(call, [None])) == "got 1 outputs for 2 requests (a, b)"
    assert (
        said("one-output-per-request", outcome(called([]), [None]))
        == "got 1 outputs for 0 requests (an empty subgroup)"
    )
    assert "got 0 outputs" in str(said("one-output-per-request", outcome(call, torch.tensor(1.0))))


def test_none_stands_for_what_is_not_finished() -> None:
    call = called()
    rows = right_outputs(call)
    told = said("none-iff-unfinished", outcome(call, rows, expected=[rows[0], None]))
    assert told == "request b is not finished, but got shape (3, 3); should be None"
    assert said("none-iff-unfinished", outcome(call, [None, rows[1]])) == "request a is finished, but got None"
    assert said("none-iff-unfinished", outcome(call, [None, None], expected=[ANYTHING, None])) is None


def test_a_result_has_its_shape() -> None:
    call = called()
    rows = right_outputs(call)
    assert said("row-count", outcome(call, ["rows", rows[1]])) == "request a got a str, but should get a tensor"
    told = said("row-count", outcome(call, [rows[0], rows[1][:1]]))
    assert told == "request b got shape (1, 3), but should get shape (3, 3)"


def test_rows_too_many_are_named_if_they_are_somebodys() -> None:
    call = called([1])
    named_as = lambda row: "request a, token 0" if row[0] == 1 else "no row"  # noqa: E731
    nine = call.hidden_states.repeat(9, 1)
    told = str(said("row-count", outcome(call, [nine], origin=named_as)))
    assert told.endswith(f": its rows are {'; '.join(['request a, token 0'] * 8)}; ...")
    eight = str(said("row-count", outcome(call, [nine[:8]], origin=named_as)))
    assert eight.endswith(f": its rows are {'; '.join(['request a, token 0'] * 8)}")
    for other in (nine[:, :2], nine.double(), nine + 1, nine[None], nine[:0]):
        assert "its rows are" not in str(said("row-count", outcome(call, [other], origin=named_as)))


def test_a_result_has_its_dtype_and_device() -> None:
    call = called()
    rows = right_outputs(call)
    told = said("dtype-and-device", outcome(call, [rows[0].double(), rows[1]]))
    assert told == "request a got torch.float64, but should get torch.float32"
    told = said("dtype-and-device", outcome(call, [rows[0], rows[1].to("meta")]))
    assert told == "request b got a result on meta, but the hidden states lie on cpu"


def test_a_wrong_row_is_told() -> None:
    call = called()
    rows = right_outputs(call)
    told = said("values", outcome(call, [rows[0], rows[1][[0, 2, 1]]]))
    assert told == "request b got in row 1 a row that begins with 13, but should get a row that begins with 10"
    flat = called([1])
    expected = [flat.hidden_states[0].clone()]
    told = said("values", outcome(flat, [expected[0] + 1], expected=expected))
    assert told == "request a got a row that begins with 2, but should get a row that begins with 1"


def test_the_element_furthest_outside_its_budget_is_told() -> None:
    call = called([1])
    due = Approx(np.array([1.0, 10.0, 100.0]), np.array([0.25, 1.0, 8.0]), torch.float32)
    at_the_edge = torch.tensor([1.25, 9.0, 108.0])
    assert said("values", outcome(call, [at_the_edge], expected=[due])) is None
    # 1.5 is twice its budget away and 112 further off in numbers, which is what counts.
    told = str(said("values", outcome(call, [torch.tensor([1.5, 10.0, 112.0])], expected=[due])))
    assert told == "request a got 112 at [2], but should get 100 within 8 (2 of 3 elements are off)"
    told = str(said("values", outcome(call, [torch.tensor([1.5, 13.0, 100.0])], expected=[due])))
    assert told.startswith("request a got 13 at [1], but should get 10 within 1 (2 of 3")
    told = str(said("values", outcome(call, [torch.tensor([1.5, float("nan"), 100.0])], expected=[due])))
    assert told.startswith("request a got nan at [1]")


def test_an_infinity_in_the_wrong_place_is_told_without_a_warning() -> None:
    call = called([1])
    due = Approx(np.array([1.0, np.inf]), np.array([np.inf, np.inf]), torch.float32)
    told = str(said("values", outcome(call, [torch.tensor([1.0, float("-inf")])], expected=[due])))
    assert told == "request a got -inf at [1], but should get inf within inf (1 of 2 elements are off)"


@pytest.mark.parametrize("element", [0, 1, 2])
def test_elements_within_their_budget_are_not_told(element: int) -> None:
    call = called([1])
    due = Approx(np.array([-4.0, 4.0, 0.0]), np.array([3.0, 3.0, 3.0]), torch.float32)
    got = torch.tensor([-1.5, 1.5, 2.5])
    got[element] += 10
    told = str(said("values", outcome(call, [got], expected=[due])))
    assert f" at [{element}], " in told
    assert told.endswith("(1 of 3 elements are off)")


def edit_rows(call: Call) -> None:
    call.hidden_states[1:] += 1


def edit_cursor(call: Call) -> None:
    call.metadata.pooling_cursor.seq_lens_cpu += 1


def edit_states(call: Call) -> None:
    call.metadata.pooling_states.pop()


def edit_params(call: Call) -> None:
    call.metadata.pooling_params[0].dimensions = 1


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (edit_rows, "hidden_states was edited in rows [1, 2, 3, 4, 5]"),
        (edit_cursor, "the cursor was edited: [[0, 2], [1, 6], [2, 5], [2, 5], [2, 5]] became"),
        (edit_states, "the list of 2 pooling states was edited"),
        (edit_params, "the pooling params were edited: "),
    ],
)
def test_an_edited_input_is_told(edit: Callable[[Call], None], told: str) -> None:
    call = called([2, 5])
    came = outcome(call, right_outputs(call))
    assert said("inputs-unchanged", came) is None
    edit(call)
    assert str(said("inputs-unchanged", came)).startswith(told)


def test_edited_token_ids_are_told() -> None:
    call = called()
    call.metadata.prompt_token_ids_cpu = torch.zeros(2, 3, dtype=torch.int64)
    call = Call(call.hidden_states, call.metadata, call.names)
    came = outcome(call, right_outputs(call))
    assert said("inputs-unchanged", came) is None
    call.metadata.prompt_token_ids_cpu[1, 2] = 5
    assert said("inputs-unchanged", came) == "prompt_token_ids_cpu was edited"


def test_a_malformed_cursor_can_not_be_edited() -> None:
    call = called()
    assert said("inputs-unchanged", outcome(call, right_outputs(call), cursor_before=None)) is None


def test_a_state_holds_copies() -> None:
    call = called()
    rows = right_outputs(call)
    call.states[1].hidden_states_cache.append(call.hidden_states[2:].clone())
    assert said("state-owns-its-rows", outcome(call, rows)) is None
    call.states[1].hidden_states_cache.append(call.hidden_states[:0])  # of no row, so nothing is overwritten
    assert said("state-owns-its-rows", outcome(call, rows)) is None
    call.states[1].kept = call.hidden_states[4:]
    told = "request b's state holds a view of the step's hidden_states, which the engine will overwrite"
    assert said("state-owns-its-rows", outcome(call, rows)) == told


def test_outputs_are_copies_where_they_must_be() -> None:
    call = called()
    rows = right_outputs(call)
    views = [rows[0], call.hidden_states[2:]]
    assert said("outputs-own-their-rows", outcome(call, views)) is None
    assert said("outputs-own-their-rows", outcome(call, rows, must_own_outputs=True)) is None
    told = "request b's output is a view of the step's hidden_states, which the next step will overwrite"
    assert said("outputs-own-their-rows", outcome(call, views, must_own_outputs=True)) == told
    nothing = [rows[0], call.hidden_states[:0]]
    assert said("outputs-own-their-rows", outcome(call, nothing, must_own_outputs=True)) is None


def test_a_state_retains_its_prompt_and_no_more() -> None:
    call = called([2, 3], [2, 3], [4, 3])
    rows = right_outputs(call)
    row_bytes = HIDDEN * 4
    whole = torch.zeros(4, HIDDEN)
    call.states[0].hidden_states_cache += [whole[:2], whole[2:]]  # one memory is counted once
    assert said("state-is-bounded", outcome(call, rows)) is None
    call.states[0].hidden_states_cache[:] = [torch.zeros(3, HIDDEN), torch.zeros(1, HIDDEN), torch.zeros(1)]
    told = f"request a's state retains {4 * row_bytes + 4} bytes, but the rows of its prompt are {4 * row_bytes} bytes"
    assert said("state-is-bounded", outcome(call, rows)) == told


def test_the_state_of_who_is_finished_is_empty() -> None:
    call = called()
    rows = right_outputs(call)
    call.states[1].hidden_states_cache += [rows[0], rows[1]]
    assert said("state-cleared", outcome(call, rows, finished=[True, False])) is None
    told = "request b is finished, but its state still holds 2 tensors"
    assert said("state-cleared", outcome(call, rows)) == told


def waits(number: int, way: str = "read") -> Record:
    """A record of so many waits, and of an upload that nobody waits for."""
    crossings = [Crossing(way, "item", 4, True, "pooler.py:7")] * number  # type: ignore[arg-type]
    return Record([*crossings, Crossing("upload", "to", 4, False, "pooler.py:9")])


def test_waits_are_held_against_the_budget() -> None:
    call = called()
    rows = right_outputs(call)
    assert said("sync-budget", outcome(call, rows, record=waits(0))) is None
    assert said("sync-budget", outcome(call, rows, record=waits(2), allowed_waits=2)) is None
    told = said("sync-budget", outcome(call, rows, record=waits(2), allowed_waits=1))
    assert told == "2 reads for 2 requests, but should wait at most 1 times: 2 x item at pooler.py:7"
    one = called([2])
    told = said("sync-budget", outcome(one, right_outputs(one), record=waits(1, "sync")))
    assert told == "1 wait for 1 request, but should wait at most 0 times: 1 x item at pooler.py:7"


@pytest.mark.parametrize(
    ("kept", "needed", "told"),
    [
        (0, [], None),
        (1, ["q"], None),
        (1, [], "the rows of 1 query are kept, but none should be"),
        (3, ["q", "r"], "the rows of 3 queries are kept, but those of q, r should be"),
    ],
)
def test_queries_are_let_go(kept: int, needed: list[str], told: str | None) -> None:
    assert said("query-is-let-go", kept, needed) == told


def test_a_breach_of_ownership_hides_no_other() -> None:
    call = called([2, 3], [2, 3], [2, 4])
    call.states[1].hidden_states_cache.append(call.hidden_states[2:])
    swapped = [call.hidden_states[[1, 0]], None]
    expected = [call.hidden_states[:2].clone(), None]
    came = outcome(call, swapped, expected=expected, finished=[True, False])
    ownership, other = contracts.broken_after(came, is_borrowed=True)
    assert ownership is None
    assert other is not None
    assert other.contract == "values"
    right = replace_outputs(came, [call.hidden_states[:2].clone(), None])
    ownership, other = contracts.broken_after(right, is_borrowed=False)
    assert ownership is not None
    assert (ownership.contract, other) == ("state-owns-its-rows", None)


def replace_outputs(came: Outcome, outputs: Any) -> Outcome:
    return outcome(came.call, outputs, expected=came.expected, finished=came.finished)


# Between runs, and of an engine.


@pytest.mark.parametrize(
    ("by_number", "declared", "grows"),
    [
        ([0] * 6, 0, False),
        ([2] * 6, 0, False),
        (list(LADDER), 0, True),
        (list(LADDER), 1, False),
        ([2 * size for size in LADDER], 1, True),
        ([0, 0, 0, 0, 0, 1], 0, False),  # a wait that small batches get by without
        ([0, 0, 0, 0, 1, 2], 0, True),
        ([size // 8 for size in LADDER], 0, True),
    ],
)
def test_waits_that_grow_with_the_batch_are_told(by_number: list[int], declared: int, grows: bool) -> None:
    records = {size: waits(number) for size, number in zip(LADDER, by_number, strict=True)}
    assert (said("waits-do-not-grow", records, declared) is not None) == grows


def test_growth_is_told_in_numbers_and_not_concluded_from_little() -> None:
    records = {size: waits(size) for size in LADDER}
    told = said("waits-do-not-grow", records, 0)
    assert told == (
        "32 reads for 32 requests, 1.0 more with each, but should be at most 0 more: 32 x item at pooler.py:7"
    )
    assert said("waits-do-not-grow", dict(list(records.items())[:-1]), 0) is None
    assert said("waits-do-not-grow", {1: waits(1), 32: waits(32)}, 0) is None
    assert said("waits-do-not-grow", {size + 1: waits(1) for size in (0, 1, 2, 3, 4, 5)}, 0) is None
    assert said("waits-do-not-grow", {}, 0) is None


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (["rows"], None),
        ([], "request a was answered 0 times (never), but should be once"),
        ([None], "request a was answered 1 times (nothing), but should be once"),
        ([None, "rows"], "request a was answered 2 times (nothing, a result), but should be once"),
    ],
)
def test_a_request_is_answered_once(results: list[object], told: str | None) -> None:
    assert said("finishes-once", "a", results) == told


def test_what_an_engine_left_is_told() -> None:
    assert said("nothing-left-behind", []) is None
    assert said("nothing-left-behind", ["a block", "a state"]) == "a block; a state"
    assert said("batch-belongs-together", []) is None
    assert said("batch-belongs-together", ["slot 0"]) == "slot 0"
    told = "after 9 steps without progress there still wait: a, b"
    assert said("every-request-finishes", ["a", "b"], 9) == told


# The contracts themselves.


def test_every_contract_says_what_it_is_for() -> None:
    for contract in contracts.all_contracts():
        assert contract.rule.endswith(".")
        assert contract.why.endswith(".")
        assert contract.without.endswith(".")
        assert "\n" not in contract.why + contract.without
        assert "Why:" not in contract.why
        assert "Without it" not in contract.why


def test_contracts_come_in_the_order_in_which_they_are_checked() -> None:
    phases = [contract.phase for contract in contracts.all_contracts()]
    assert phases == sorted(phases, key=("before", "after", "between").index)
    with pytest.raises(KeyError):
        named("no-such-contract")
