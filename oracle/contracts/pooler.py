"""After a step: the pooler's duties."""

from collections.abc import Sequence
from typing import Final

import torch

from oracle.approx import Approx
from oracle.contracts.contract import AFTER, Contract, Violation, after, declare, first_broken
from oracle.contracts.seen import ANYTHING, Outcome
from oracle.contracts.telling import origins_of_rows, places_told, requests_told, shape_of, worst_element, wrong_row
from oracle.device.memory import address, retained_bytes
from oracle.rows import bits, same_numbers


@after
def one_output_per_request(outcome: Outcome) -> str | None:
    """A pooler returns one entry for each request of the batch, in batch order.

    Why: outputs are matched to requests by position alone.
    Without it: every request behind the slip gets its neighbour's result.
    """
    if not isinstance(outcome.outputs, (list, tuple, torch.Tensor)):
        return f"got a {type(outcome.outputs).__name__}, but should get a list or a tensor, one entry a request"
    if len(outcome.results) != len(outcome.call.names):
        return (
            f"got {len(outcome.results)} outputs for {len(outcome.call.names)} requests "
            f"({', '.join(outcome.call.names) or 'an empty subgroup'})"
        )
    return None


@after
def none_iff_unfinished(outcome: Outcome) -> str | None:
    """A token-level output is None exactly while the request's prompt is not complete.

    Why: None is the only sign by which the engine tells a partial result from a final one.
    Without it: a partial result is sent to the user, or a finished request never answers.
    """
    for name, expected, actual in zip(outcome.call.names, outcome.expected, outcome.results, strict=True):
        if expected is None and actual is not None:
            return f"request {name} is not finished, but got {shape_of(actual)}; should be None"
        if expected is not None and expected is not ANYTHING and actual is None:
            return f"request {name} is finished, but got None"
    return None


@after
def row_count(outcome: Outcome) -> str | None:
    """A finished request's output has the shape its prompt and parameters call for.

    Why: the number of rows is what late interaction and step scoring are computed over.
    Without it: rows are lost, doubled or taken from a neighbour.
    """
    for name, expected, actual in outcome.pairs():
        if not isinstance(actual, torch.Tensor):
            return f"request {name} got a {type(actual).__name__}, but should get a tensor"
        if actual.shape != expected.shape:
            wrong = f"got {shape_of(actual)}, but should get {shape_of(expected)}"
            return f"request {name} {wrong}{origins_of_rows(outcome, actual)}"
    return None


@after
def dtype_and_device(outcome: Outcome) -> str | None:
    """Outputs have the dtype that pooling and head call for, and lie where the hidden states lie.

    Why: later layers and the copy to the host rely on both.
    Without it: precision is lost silently, or a kernel mixes devices.
    """
    device = outcome.call.hidden_states.device
    for name, expected, actual in outcome.pairs():
        if actual.dtype != expected.dtype:
            return f"request {name} got {actual.dtype}, but should get {expected.dtype}"
        if actual.device != device:
            return f"request {name} got a result on {actual.device}, but the hidden states lie on {device}"
    return None


@after
def values(outcome: Outcome) -> str | None:
    """A request's result is its own rows, in prompt order, bit for bit or within the error budget.

    Why: a wrong row has the right shape, so nothing downstream notices.
    Without it: the user gets numbers that belong to a neighbour.
    """
    for name, expected, actual in outcome.pairs():
        if isinstance(expected, Approx):
            wrong = expected.wrong(actual)
            if wrong.any():
                return f"request {name} got {worst_element(expected, actual, wrong)}{origins_of_rows(outcome, actual)}"
        elif not same_numbers(expected, actual):
            return f"request {name} {wrong_row(outcome.origin, expected, actual)}"
    return None


@after
def inputs_unchanged(outcome: Outcome) -> str | None:
    """A pooler leaves the hidden states, the cursor and the params as they were.

    Why: other poolers of the step, and the engine itself, read them after it.
    Without it: the damage shows in another request's result.
    """
    rows, before_rows = outcome.call.hidden_states, outcome.hidden_states_before
    if not same_numbers(rows, before_rows):
        differs = (bits(rows) != bits(before_rows)).any(dim=1).nonzero().flatten().tolist()
        return f"hidden_states was edited in rows {differs[:5]}"
    if outcome.cursor_before is not None and outcome.call.cursor_values() != outcome.cursor_before:
        return f"the cursor was edited: {outcome.cursor_before} became {outcome.call.cursor_values()}"
    metadata = outcome.call.metadata
    if [id(state) for state in metadata.pooling_states] != [id(state) for state in outcome.call.states]:
        return f"the list of {len(outcome.call.states)} pooling states was edited"
    if list(metadata.pooling_params) != list(outcome.params_before):
        return f"the pooling params were edited: {outcome.params_before} became {metadata.pooling_params}"
    if outcome.call.token_ids is not None and not torch.equal(metadata.prompt_token_ids_cpu, outcome.call.token_ids):
        return "prompt_token_ids_cpu was edited"
    return None


@after
def state_owns_its_rows(outcome: Outcome) -> str | None:
    """Rows kept for a later step are copies, not views of the step's buffer.

    Why: the engine reuses the buffer for the next step.
    Without it: earlier chunks turn into the latest chunk's values.
    """
    memory = address(outcome.call.hidden_states)
    for name, held in zip(outcome.call.names, outcome.held, strict=True):
        if any(tensor.numel() and address(tensor) == memory for tensor in held):
            return f"request {name}'s state holds a view of the step's hidden_states, which the engine will overwrite"
    return None


@after
def outputs_own_their_rows(outcome: Outcome) -> str | None:
    """With async scheduling, outputs are copies, not views of the step's buffer.

    Why: the next step may overwrite the buffer before the outputs are read.
    Without it: a request's result changes after it was handed out.
    """
    if not outcome.must_own_outputs:
        return None
    memory = address(outcome.call.hidden_states)
    for name, _, actual in outcome.pairs():
        if actual.numel() and address(actual) == memory:
            return f"request {name}'s output is a view of the step's hidden_states, which the next step will overwrite"
    return None


@after
def state_is_bounded(outcome: Outcome) -> str | None:
    """Between steps a state retains no more bytes than the rows of its own prompt.

    Why: a small view pins the whole buffer it was cut from.
    Without it: memory grows with traffic until the device is full.
    """
    row_bytes = outcome.call.hidden_states.shape[-1] * outcome.call.hidden_states.element_size()
    for name, held, rows in zip(outcome.call.names, outcome.held, outcome.kept_rows, strict=True):
        if held:
            total_bytes = sum({address(tensor): retained_bytes(tensor) for tensor in held}.values())
            if total_bytes > rows * row_bytes:
                return (
                    f"request {name}'s state retains {total_bytes} bytes, but the rows of its prompt are "
                    f"{rows * row_bytes} bytes"
                )
    return None


@after
def state_cleared(outcome: Outcome) -> str | None:
    """A finished request's state is empty.

    Why: states are pooled and reused, and their memory is the device's.
    Without it: the next request in the slot begins with somebody else's rows.
    """
    for name, held, finished in zip(outcome.call.names, outcome.held, outcome.finished, strict=True):
        if finished and held:
            return f"request {name} is finished, but its state still holds {len(held)} tensors"
    return None


@after
def sync_budget(outcome: Outcome) -> str | None:
    """A call makes the host wait for the device no more often than its pooler declares: never, by default.

    Why: each wait drains the device's queue and adds its latency to every request of the step.
    Without it: a step gets slower with no wrong number to show for it, and only on a device.
    """
    if len(outcome.record.waiting) <= outcome.allowed_waits:
        return None
    return (
        f"{outcome.record.describe_waits()} for {requests_told(len(outcome.call.names))}, but should wait at most "
        f"{outcome.allowed_waits} times: {places_told(outcome.record.places())}"
    )


OWNERSHIP: Final = frozenset(("state-owns-its-rows", "outputs-own-their-rows", "state-is-bounded"))
"""What is broken by a view of the step's buffer. On buffers that are not used again a view does no harm, so a scenario
can go on there and show what else is wrong."""
BEYOND_OWNERSHIP: Final[list[Contract[Outcome]]] = [contract for contract in AFTER if contract.name not in OWNERSHIP]


def broken_after(outcome: Outcome, is_borrowed: bool) -> tuple[Violation | None, Violation | None]:
    """The first breach of ownership, unless rows are known to be borrowed, and the first of anything else.

    Contracts rely on those before them, so where something else comes first ownership is not looked at.
    """
    broken = first_broken(BEYOND_OWNERSHIP if is_borrowed else AFTER, outcome)
    if broken is None or broken.contract not in OWNERSHIP:
        return None, broken
    return broken, first_broken(BEYOND_OWNERSHIP, outcome)


@declare("after")
def query_is_let_go(kept: int, needed: Sequence[str]) -> str | None:
    """A query's rows are kept for late interaction until the last of its documents is scored or gone, no longer.

    Why: a client may go at any time, and its query is of no use to others.
    Without it: device memory grows with every client that goes before its documents are scored.
    """
    if kept <= len(needed):
        return None
    told = f"those of {', '.join(needed)}" if needed else "none"
    return f"the rows of {kept} quer{'y' if kept == 1 else 'ies'} are kept, but {told} should be"


@declare("after")
def accepts_valid_input(error: Exception) -> str | None:
    """A pooler serves every schedule that an engine can produce.

    Why: an exception in the pooler ends the engine, with every request in it.
    Without it: one unusual batch takes the server down.
    """
    return f"raised {type(error).__name__}: {error}"


@declare("after")
def comes_back() -> str | None:
    """A call of a pooler comes back.

    Why: an engine makes one step at a time and waits for it.
    Without it: the server stands still, with every request in it, and reports no error.
    """
    return "did not come back within the time that a scenario may take"


@declare("after")
def process_survives(how: str) -> str | None:
    """A call of a pooler leaves the process alive, and memory for others.

    Why: an engine can catch an exception, but not a signal or an exit.
    Without it: one batch takes the server down, and nothing in its log says which.
    """
    return how


@declare("after")
def reject_or_be_right(error: str) -> str | None:
    """On malformed input a pooler raises an error or gives the right answer all the same.

    Why: a caller's mistake is found at once if it is loud.
    Without it: wrong rows reach users, and the pooler looks innocent.
    """
    return f"the input was malformed, yet the pooler neither raised nor was right: {error}"
