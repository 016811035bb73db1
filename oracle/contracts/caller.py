"""Before a step: the caller's duties."""

from collections.abc import Sequence

import torch

from oracle.contracts.contract import before, declare
from oracle.contracts.seen import CURSOR_FIELDS, HOST_FIELDS, INDEX_DTYPES, Call, tensors_in


@before
def cursor_complete(call: Call) -> str | None:
    """The metadata has a cursor, and the cursor has every field a pooler may read.

    Why: poolers read `num_scheduled_tokens_cpu` instead of asking the device, so every caller must set it.
    Without it: an AttributeError deep in the pooler, on the one path whose author forgot.
    """
    cursor = getattr(call.metadata, "pooling_cursor", None)
    if cursor is None:
        return "pooling_cursor is not set; call build_pooling_cursor before pooling"
    for name in CURSOR_FIELDS:
        value = getattr(cursor, name, None)
        if not isinstance(value, torch.Tensor):
            seen = "is not set" if value is None else f"is a {type(value).__name__}"
            return f"pooling_cursor.{name} {seen}, but should be a tensor with one integer a request"
        # Made of an empty list, a tensor holds floats, none of them.
        if value.dim() != 1 or (value.numel() and value.dtype not in INDEX_DTYPES):
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
    for name in HOST_FIELDS:
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
        **{name: len(values) for name, values in zip(CURSOR_FIELDS, call.cursor, strict=True)},
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
                    f"request {name} starts at its first token, but its pooling state still holds {rows} "
                    f"row{'s' * (rows != 1)}; the caller must clean it on preemption"
                )
    return None


@declare("before")
def refuses_impossible_params(name: str, refusal: str, raised: str) -> str | None:
    """Verification refuses the params that a model can't deliver, before the request is scheduled, and no others.

    Why: what is accepted is computed, and nothing later looks at whether it is what was asked for.
    Without it: an embedding has another width than its user relies on, or a right request is turned away.
    """
    if refusal and not raised:
        return f"request {name}'s params were accepted, but should be refused: {refusal}"
    if raised and not refusal:
        return f"request {name}'s params were refused, but can be delivered: {raised}"
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
