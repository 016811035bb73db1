"""The named invariants between an engine and its poolers.

A contract is checked `before` a call (the caller's duty), `after` it (the pooler's duty) or
`between` runs (both must agree). Its first docstring line is the rule, the paragraph "Why" says why
it matters and "Without it" what breaks; `poolproof contracts` prints these from here. A check
returns what is wrong, in one message, or None.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

import numpy as np
import torch

from oracle.approx import Approx, as_float64
from oracle.device.memory import address, data, retained_bytes
from oracle.device.record import Record
from oracle.reference import Expected
from oracle.rows import bits, same_bits

Phase = Literal["before", "after", "between"]
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Violation:
    """One contract broken once."""

    contract: str
    message: str


class ContractError(AssertionError):
    """A violated contract, raised by `oracle.guard`."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.contract}: {violation.message}")
        self.violation = violation


@dataclass(frozen=True)
class Contract(Generic[Subject]):
    """A rule with its check."""

    name: str
    phase: Phase
    rule: str
    why: str
    without: str
    check: Callable[[Subject], str | None]


@dataclass
class Call:
    """One call of a pooler: what it is handed, read once into plain lists.

    `names` are the batch's requests, for messages. `computed_before` holds how many tokens of each
    request were computed before this step, where the checker knows. `spare_rows` says that rows
    beyond the scheduled ones are expected (padding, or the rows of other groups).
    """

    hidden_states: torch.Tensor
    metadata: Any
    names: Sequence[str]
    computed_before: Sequence[int] | None = None
    spare_rows: bool = False
    states: list[Any] = field(init=False)
    """The requests' pooling states, whatever becomes of the metadata's list of them."""
    token_ids: torch.Tensor | None = field(init=False)
    """A copy of the host's prompt token ids, if there are any."""
    cursor: list[list[int]] = field(init=False)
    """The lists below, in the order of `_CURSOR_FIELDS`, as they were when the call was made."""
    first: list[int] = field(init=False)
    """Row index of each request's first token in this step."""
    last: list[int] = field(init=False)
    """Row index of each request's last token in this step."""
    scheduled: list[int] = field(init=False)
    """Tokens of each request in this step."""
    prompt_lens: list[int] = field(init=False)
    """Prompt length of each request."""
    seq_lens: list[int] = field(init=False)
    """Tokens of each request computed so far, this step's included."""

    def __post_init__(self) -> None:
        self.states = list(self.metadata.pooling_states)
        token_ids = getattr(self.metadata, "prompt_token_ids_cpu", None)
        self.token_ids = None if token_ids is None else token_ids.clone()
        self.cursor = self.cursor_values()
        self.first, self.last, self.prompt_lens, self.seq_lens, self.scheduled = self.cursor

    def cursor_values(self) -> list[list[int]]:
        """The cursor's lists as they are now, in the order of `_CURSOR_FIELDS`."""
        cursor = getattr(self.metadata, "pooling_cursor", None)
        return [_ints(getattr(cursor, name, None)) for name in _CURSOR_FIELDS]


@dataclass
class Outcome:
    """What a call did, beside what it should have done; every list is n requests long.

    `expected` holds None for a request that must not have a result yet and `ANYTHING` for one whose
    result nobody reads. `cursor_before` is None where the cursor was malformed. `kept_rows` is how many
    rows of hidden states a request may retain. `origin` names a row.
    """

    call: Call
    outputs: Any
    expected: Sequence["Expected | Anything | None"]
    hidden_states_before: torch.Tensor
    cursor_before: list[list[int]] | None
    params_before: Sequence[Any]
    kept_rows: Sequence[int]
    must_own_outputs: bool
    origin: Callable[[torch.Tensor], str]
    finished: Sequence[bool]
    record: Record = field(default_factory=Record)
    """What the call asked of the device."""
    allowed_waits: int = 0
    """How often the host may wait for the device."""

    results: list[Any] = field(init=False)
    """One output a request, or fewer or more if the pooler got the number wrong."""
    held: list[list[torch.Tensor]] = field(init=False)
    """The tensors in each request's state after the call."""

    def __post_init__(self) -> None:
        there = isinstance(self.outputs, (list, tuple)) or (
            isinstance(self.outputs, torch.Tensor) and self.outputs.dim() > 0
        )
        self.results = list(self.outputs) if there else []
        self.held = [tensors_in(state) for state in self.call.states]

    def pairs(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, expected and actual result of each request that should have one."""
        for name, expected, actual in zip(self.call.names, self.expected, self.results, strict=True):
            if expected is not None and expected is not ANYTHING:
                yield name, expected, actual


class Anything:
    """The type of `ANYTHING`."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final = Anything()

BEFORE: Final[list[Contract[Call]]] = []
AFTER: Final[list[Contract[Outcome]]] = []
OTHER: Final[list[Contract[Any]]] = []
"""Contracts whose check needs more than one call; the runner or a relation holds it."""


def before(check: Callable[[Call], str | None]) -> Callable[[Call], str | None]:
    """Register the caller's duty; checked in the order of registration, until one is broken."""
    BEFORE.append(_contract(check, "before"))
    return check


def after(check: Callable[[Outcome], str | None]) -> Callable[[Outcome], str | None]:
    """Register the pooler's duty; checked in the order of registration, until one is broken."""
    AFTER.append(_contract(check, "after"))
    return check


def declare(phase: Phase) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Register a contract whose check is called by name."""

    def register(check: Callable[..., str | None]) -> Callable[..., str | None]:
        OTHER.append(_contract(check, phase))
        return check

    return register


def _contract(check: Callable[..., str | None], phase: Phase) -> Contract[Any]:
    rule, _, rest = inspect.cleandoc(check.__doc__ or "").partition("\n")
    why, _, without = rest.partition("Without it: ")
    return Contract(
        name=_name(check),
        phase=phase,
        rule=rule,
        why=" ".join(why.replace("Why: ", "").split()),
        without=" ".join(without.split()),
        check=check,
    )


def _name(check: Callable[..., Any]) -> str:
    return check.__name__.replace("_", "-")


def all_contracts() -> list[Contract[Any]]:
    """Every contract, the caller's duties first."""
    rank = ("before", "after", "between")
    return sorted([*BEFORE, *AFTER, *OTHER], key=lambda contract: rank.index(contract.phase))


def named(name: str) -> Contract[Any]:
    """The contract of that name.

    Raises:
        KeyError: there is none.
    """
    return {contract.name: contract for contract in all_contracts()}[name]


def first_broken(contracts: Sequence[Contract[Subject]], subject: Subject) -> Violation | None:
    """The first of the contracts that does not hold; later ones may rely on it."""
    for contract in contracts:
        message = contract.check(subject)
        if message is not None:
            return Violation(contract.name, message)
    return None


# Before a step: the caller's duties.


@before
def cursor_complete(call: Call) -> str | None:
    """The metadata has a cursor, and the cursor has every field a pooler may read.

    Why: poolers read `num_scheduled_tokens_cpu` instead of asking the device, so every caller must set it.
    Without it: an AttributeError deep in the pooler, on the one path whose author forgot.
    """
    cursor = getattr(call.metadata, "pooling_cursor", None)
    if cursor is None:
        return "pooling_cursor is not set; call build_pooling_cursor before pooling"
    for name in _CURSOR_FIELDS:
        value = getattr(cursor, name, None)
        if not isinstance(value, torch.Tensor):
            seen = "is not set" if value is None else f"is a {type(value).__name__}"
            return f"pooling_cursor.{name} {seen}, but should be a tensor with one integer a request"
        if value.dtype not in _INDEX_DTYPES or value.dim() != 1:
            return (
                f"pooling_cursor.{name} has dtype {value.dtype} and {value.dim()} dimensions, but should hold "
                "one integer a request"
            )
    return None


@before
def host_fields_on_host(call: Call) -> str | None:
    """Fields that end in `_cpu` lie in host memory.

    Why: they exist so that lengths can be read without waiting for the device.
    Without it: each `.tolist()` becomes a hidden device-to-host sync, and a slow step looks healthy.
    """
    for name in _HOST_FIELDS:
        field = getattr(call.metadata.pooling_cursor, name)
        if not field.is_cpu:
            return f"pooling_cursor.{name} lies on {field.device}, but should lie on the host"
    return None


@before
def lengths_agree(call: Call) -> str | None:
    """Every per-request field has one entry for each request of the batch.

    Why: fields are walked in parallel, and a walk over unequal lengths stops at the shortest.
    Without it: the last requests silently get no output, or a neighbour's parameters.
    """
    expected = len(call.metadata.pooling_params)
    lengths = {
        "prompt_lens": call.metadata.prompt_lens.shape[0],
        "pooling_states": len(call.metadata.pooling_states),
        **{name: len(values) for name, values in zip(_CURSOR_FIELDS, call.cursor, strict=True)},
    }
    for name, length in lengths.items():
        if length != expected:
            return f"{name} has {length} entries for {expected} requests ({', '.join(call.names)})"
    return None


@before
def scheduled_tokens_match_spans(call: Call) -> str | None:
    """Each request's scheduled count is the length of its span of rows.

    Why: some poolers cut by spans, others by counts; both must cut at the same rows.
    Without it: two right poolers disagree, and rows move to the neighbour.
    """
    for name, first, last, scheduled in zip(call.names, call.first, call.last, call.scheduled, strict=True):
        if last - first + 1 != scheduled:
            return (
                f"request {name} has {scheduled} scheduled tokens but spans rows {first} to {last}, "
                f"which are {last - first + 1}"
            )
    return None


@before
def contiguity(call: Call) -> str | None:
    """Each request's rows begin where the previous request's rows end.

    Why: one slice over the group and one split is only right without gaps and overlaps.
    Without it: every request after a gap gets rows shifted by it.
    """
    for place in range(1, len(call.first)):
        due = call.last[place - 1] + 1
        if call.first[place] != due:
            kind = "a gap" if call.first[place] > due else "an overlap"
            return (
                f"request {call.names[place]} begins at row {call.first[place]} but should begin at row {due}, "
                f"after request {call.names[place - 1]}: {kind}"
            )
    return None


@before
def rows_cover(call: Call) -> str | None:
    """The hidden states have all rows that the spans name, and no spare row unless it is declared.

    Why: slicing past the end of a tensor is silent, and spare rows break poolers that split.
    Without it: the last request comes out short.
    """
    num_rows = call.hidden_states.shape[0]
    if not call.first:
        return None
    if call.first[0] < 0 or call.last[-1] >= num_rows:
        return (
            f"the spans go from row {call.first[0]} to {call.last[-1]} (request {call.names[-1]}), but "
            f"hidden_states has {num_rows} rows"
        )
    if not call.spare_rows and (call.first[0] != 0 or call.last[-1] != num_rows - 1):
        return (
            f"hidden_states has {num_rows} rows, but the spans cover rows {call.first[0]} to {call.last[-1]}; "
            "cut off padding first"
        )
    return None


@before
def progress(call: Call) -> str | None:
    """Each request computes at least one token, never past its prompt, and goes on where it stopped.

    Why: whether a request is finished is read off these lengths alone.
    Without it: a request finishes twice, never, or with rows that the pooler was never handed.
    """
    for place, name in enumerate(call.names):
        scheduled, seq_len, prompt_len = call.scheduled[place], call.seq_lens[place], call.prompt_lens[place]
        if scheduled < 1:
            return f"request {name} is in the batch with {scheduled} scheduled tokens, but should have at least 1"
        if seq_len > prompt_len:
            return f"request {name} has computed {seq_len} tokens of a prompt of {prompt_len}"
        if call.computed_before is not None and seq_len - scheduled != call.computed_before[place]:
            return (
                f"request {name} had {call.computed_before[place]} tokens computed before this step, but seq_lens "
                f"minus the scheduled tokens says {seq_len - scheduled}"
            )
    return None


@before
def one_state_per_request(call: Call) -> str | None:
    """No two requests of a batch share a `PoolingStates`.

    Why: the state holds a request's rows between steps.
    Without it: the chunks of two prompts are joined into one.
    """
    owner: dict[int, str] = {}
    for name, state in zip(call.names, call.metadata.pooling_states, strict=True):
        if id(state) in owner:
            return f"requests {owner[id(state)]} and {name} share one pooling state"
        owner[id(state)] = name
    return None


@before
def state_is_fresh_at_the_start(call: Call) -> str | None:
    """A request with nothing computed before this step has an empty pooling state.

    Why: a preempted request is computed anew from its first token, and the pooler can't tell why.
    Without it: the rows of before the preemption come out in front of the recomputed ones.
    """
    for place, name in enumerate(call.names):
        if call.seq_lens[place] == call.scheduled[place]:
            held = tensors_in(call.metadata.pooling_states[place])
            if held:
                rows = sum(tensor.shape[0] for tensor in held if tensor.dim())
                return (
                    f"request {name} starts at its first token, but its pooling state still holds {rows} row{'s' * (rows != 1)}; "
                    "the caller must clean it on preemption"
                )
    return None


@declare("before")
def cursor_is_a_snapshot(field: str, built: Sequence[int], after_rewrite: Sequence[int]) -> str | None:
    """The cursor keeps its values when the caller rewrites the buffers it was built from.

    Why: engines reuse their host buffers, and with async scheduling they do so while a step is in flight.
    Without it: a step is pooled by the next step's counts.
    """
    if list(built) != list(after_rewrite):
        return (
            f"{field} was {list(built)} when the cursor was built, but became "
            f"{list(after_rewrite)} when the caller rewrote its own array"
        )
    return None


# After a step: the pooler's duties.


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
            return f"request {name} is not finished, but got {_shape(actual)}; should be None"
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
            return f"request {name} got {_shape(actual)}, but should get {_shape(expected)}{_origins(outcome, actual)}"
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
                return f"request {name} got {_worst(expected, actual, wrong)}{_origins(outcome, actual)}"
        elif not same_bits(expected, actual):
            return f"request {name} {_wrong_row(outcome.origin, expected, actual)}"
    return None


@after
def inputs_unchanged(outcome: Outcome) -> str | None:
    """A pooler leaves the hidden states, the cursor and the params as they were.

    Why: other poolers of the step, and the engine itself, read them after it.
    Without it: the damage shows in another request's result.
    """
    rows, before_rows = outcome.call.hidden_states, outcome.hidden_states_before
    if not same_bits(rows, before_rows):
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
        f"{outcome.record.describe_waits()} for {_requests(len(outcome.call.names))}, but should wait at most "
        f"{outcome.allowed_waits} times: {_told(outcome.record.places())}"
    )


@declare("after")
def accepts_valid_input(error: Exception) -> str | None:
    """A pooler serves every schedule that an engine can produce.

    Why: an exception in the pooler ends the engine, with every request in it.
    Without it: one unusual batch takes the server down.
    """
    return f"raised {type(error).__name__}: {error}"


@declare("after")
def reject_or_be_right(error: str) -> str | None:
    """On malformed input a pooler raises an error or gives the right answer all the same.

    Why: a caller's mistake is found at once if it is loud.
    Without it: wrong rows reach users, and the pooler looks innocent.
    """
    return f"the input was malformed, yet the pooler neither raised nor was right: {error}"


# Of an engine: from arrival to result.


@declare("before")
def batch_belongs_together(problems: Sequence[str]) -> str | None:
    """Every field of a slot in the batch belongs to the request named there.

    Why: requests move between slots when others leave, and each field moves by itself.
    Without it: a request is pooled with its neighbour's length, parameters or token ids.
    """
    return "; ".join(problems) or None


@declare("after")
def every_request_finishes(waiting: Sequence[str], steps: int) -> str | None:
    """A request that fits the engine finishes within a bounded number of steps.

    Why: a request that is passed over for ever looks to its client like a slow one.
    Without it: the engine idles while a request hangs.
    """
    return f"after {steps} steps without progress requests {', '.join(waiting)} still wait"


@declare("after")
def finishes_once(name: str, results: Sequence[object]) -> str | None:
    """A request is answered exactly once.

    Why: an answer ends the request for its client.
    Without it: a client waits for ever, or gets a partial result before the final one.
    """
    if len(results) == 1 and results[0] is not None:
        return None
    told = ["nothing" if result is None else "a result" for result in results]
    return f"request {name} was answered {len(results)} times ({', '.join(told) or 'never'}), but should be once"


@declare("after")
def nothing_left_behind(leftovers: Sequence[str]) -> str | None:
    """Once a request has left, by finishing or by abort, no state of its own remains.

    Why: slots, blocks and caches are reused.
    Without it: memory leaks, and the next request in the slot begins with somebody else's rows.
    """
    return "; ".join(leftovers) or None


# Between runs: what must not depend on the schedule.


@declare("between")
def state_determines_behaviour(message: str) -> str | None:
    """What a pooler does depends on its input and its pooling states, on nothing else that it kept.

    Why: states are all that an engine clears, moves and counts.
    Without it: a request's result depends on who was served before it.
    """
    return message


@declare("between")
def waits_do_not_grow(by_size: Mapping[int, Record], declared: int) -> str | None:
    """Calls that differ in the number of requests alone wait equally often, or as much more as is declared.

    Why: a wait a request is bearable in a test of two requests and a stall in a batch of 256.
    Without it: latency grows with load, which is when it hurts.
    """
    size = max(by_size, default=0)
    if size < LADDER[-1] or len(by_size) < len(LADDER):
        return None
    waits = [len(record.waiting) for record in by_size.values()]
    growth = float(np.polyfit(list(by_size), waits, 1)[0])
    if growth <= declared + _STEADY:
        return None
    record = by_size[size]
    return (
        f"{record.describe_waits()} for {_requests(size)}, {growth:.1f} more with each, but should be at most "
        f"{declared} more: {_told(record.places())}"
    )


LADDER: Final = (1, 2, 4, 8, 16, 32)
"""Batch sizes that show growth; from fewer or smaller ones none is concluded."""
_STEADY: Final = 1 / 16
"""More waits a request than this are growth; less is a wait that small batches get by without."""
_INDEX_DTYPES: Final = (torch.int32, torch.int64)
_HOST_FIELDS: Final = ("prompt_lens_cpu", "seq_lens_cpu", "num_scheduled_tokens_cpu")
_CURSOR_FIELDS: Final = ("first_token_indices_gpu", "last_token_indices_gpu", *_HOST_FIELDS)


def tensors_in(state: Any) -> list[torch.Tensor]:
    """Every tensor or numeric array that a pooling state holds, in whatever attribute, list or dict."""
    found: list[torch.Tensor] = []
    for value in (vars(state) if hasattr(state, "__dict__") else state).values():
        _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        found.append(torch.from_numpy(value))
    elif isinstance(value, (list, tuple, set, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, found)


def _ints(tensor: torch.Tensor | None) -> list[int]:
    """The values of a well-formed field, or none."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return []
    values: list[int] = data(tensor).tolist()
    return values


def _requests(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


def _told(places: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {place}" for place, count in places.items())


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"


def wrong_result(expected: Expected, actual: torch.Tensor, origin: Callable[[torch.Tensor], str]) -> str | None:
    """What is wrong with a result that has left its step, or None."""
    if tuple(actual.shape) != tuple(expected.shape):
        return f"got {_shape(actual)}, but should get {_shape(expected)}"
    if isinstance(expected, Approx):
        wrong = expected.wrong(actual)
        return f"got {_worst(expected, actual, wrong)}" if wrong.any() else None
    return None if same_bits(expected, actual) else _wrong_row(origin, expected, actual)


def _wrong_row(origin: Callable[[torch.Tensor], str], expected: torch.Tensor, actual: torch.Tensor) -> str:
    if expected.dim() == 1:
        return f"got {origin(actual)}, but should get {origin(expected)}"
    for place, (due, got) in enumerate(zip(expected, actual, strict=True)):
        if not same_bits(due, got):
            return f"got in row {place} {origin(got)}, but should get {origin(due)}"
    raise AssertionError("no row differs")


def _worst(expected: Approx, actual: torch.Tensor, wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    got = as_float64(actual)
    excess = np.where(wrong, np.nan_to_num(np.abs(got - expected.value) - expected.error, nan=np.inf), -np.inf)
    place = tuple(int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
    return (
        f"{got[place]:.9g} at {list(place)}, but should get {expected.value[place]:.9g} "
        f"within {expected.error[place]:.2g} ({wrong.sum()} of {wrong.size} elements are off)"
    )


def _origins(outcome: Outcome, actual: torch.Tensor) -> str:
    """Where the rows of a result come from, if they are rows at all."""
    rows = actual if actual.dim() == 2 else actual[None]
    if (
        not rows.numel()
        or rows.shape[-1] != outcome.call.hidden_states.shape[-1]
        or rows.dtype != outcome.call.hidden_states.dtype
    ):
        return ""
    named = [outcome.origin(row) for row in rows[:8]]
    if not any(name.startswith(("request", "the step")) for name in named):
        return ""
    return f": its rows are {'; '.join(named)}{'; ...' if len(rows) > 8 else ''}"
