"""Rows cut at the wrong place."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from impl.grouped import Grouped
from impl.hostsplit import HostSplit
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata
from tests.zoo.joints import Bounds, Cut, Last, spans
from tests.zoo.register import bad


@bad("row-count")
class EndTakenForExclusive(Cut):
    """The last index goes into a Python slice as it is, and a slice leaves its end out."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return [(first, end - 1) for first, end in spans(cursor)]


@bad("row-count", "state-is-bounded")
class EndOneTooFar(Cut):
    """The end was exclusive already when someone added one to it."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return [(first, end + 1) for first, end in spans(cursor)]


@bad("row-count")
class StartOneLate(Cut):
    """The special token at the front is dropped, as a retrieval model's reference code does."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return [(first + 1, end) for first, end in spans(cursor)]


@bad("row-count", "state-is-bounded")
class StartOneEarly(Cut):
    """The previous request's last index is taken for this one's first."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return [(max(first - 1, 0), end) for first, end in spans(cursor)]


@bad("row-count", "values")
class StartsWithoutZero(Cut):
    """The running sum of the counts is used as starts, without a zero in front."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        counts = scheduled_counts(cursor)
        return [(start, start + count) for start, count in zip(accumulate(counts), counts, strict=True)]


@bad("values")
class RowsRolled(HostSplit):
    """The rows are shifted by one, as labels are in the loss that this was copied from."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        return super().pool_all(hidden_states.roll(1, dims=0), metadata)


@bad("row-count", "state-is-bounded")
class PromptLengthForScheduledCount(Cut):
    """Written when prompts were never chunked, so the prompt's length was the span's."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        lengths = cursor.prompt_lens_cpu.tolist()
        return [(first, first + length) for (first, _), length in zip(spans(cursor), lengths, strict=True)]


@bad("accepts-valid-input", serves=("ALL", "LAST"))
class SplitByPromptLengths(HostSplit):
    """The split takes `prompt_lens_cpu`, which lies next to the scheduled counts."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> tuple[torch.Tensor, ...]:
        return hidden_states.split_with_sizes(cursor.prompt_lens_cpu.tolist())


@bad("row-count", "state-is-bounded")
class SequenceLengthForScheduledCount(Cut):
    """`seq_lens_cpu` is taken for this step's tokens, but it counts the earlier steps' too."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        lengths = cursor.seq_lens_cpu.tolist()
        return [(first, first + length) for (first, _), length in zip(spans(cursor), lengths, strict=True)]


@bad("row-count")
class EqualLengths(Cut):
    """The batch is cut into equal parts, as in a benchmark whose prompts are all of one length."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        width = scheduled_counts(cursor)[0] if scheduled_counts(cursor) else 0
        return [(place * width, (place + 1) * width) for place in range(len(spans(cursor)))]


@bad("row-count", "values")
class OffsetsInModelDtype(HostSplit):
    """The running sum is made with `new_tensor`, so offsets past 256 are rounded in bfloat16."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        super().chunks(hidden_states, cursor)
        ends = hidden_states.new_tensor([0, *scheduled_counts(cursor)]).cumsum(0).long().tolist()
        return [hidden_states[first:end] for first, end in pairwise(ends)]


@bad("row-count", "values")
class OffsetsInOneByte(Cut):
    """The offsets are kept in a small dtype to save memory, and wrap around in a long step."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return _bounds_in(torch.uint8, cursor)


@bad("row-count", "values")
class OffsetsInTwoBytes(Cut):
    """The same with int16, which a step of 32,768 tokens is too long for."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return _bounds_in(torch.int16, cursor)


@bad("accepts-valid-input")
class EmptyGroupUnforeseen(Grouped):
    """The group's first index is read before anyone asks whether the group has a request."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> tuple[torch.Tensor, ...]:
        first = int(cursor.first_token_indices_gpu[0].item())
        return hidden_states[first:].split_with_sizes(scheduled_counts(cursor))


@bad("one-output-per-request")
class EmptyGroupYieldsOne(HostSplit):
    """With nothing to split the rows are handed back as they are, as one output."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        return super().pool_all(hidden_states, metadata) or [hidden_states]


@bad("values", serves=("ALL", "LAST"), rows="step")
class GroupOffsetDropped(Grouped):
    """Written for a dispatcher that hands over the group's own rows, run under one that doesn't."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        super().chunks(hidden_states, cursor)
        counts = scheduled_counts(cursor)
        return hidden_states[: sum(counts)].split_with_sizes(counts)


@bad("row-count", "values", rows="step")
class GroupOffsetTwice(Grouped):
    """The group's start is added to indices that have it already."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        super().chunks(hidden_states, cursor)
        own = spans(cursor)
        return [hidden_states[first + own[0][0] : end + own[0][0]] for first, end in own]


@bad("values", serves=("LAST",))
class RowPerRequest(Last):
    """Row i is taken for request i, as in decoding, where each request has one row."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> torch.Tensor:
        return hidden_states[: len(scheduled_counts(cursor))].clone()


@bad("values", serves=("LAST",))
class LastByPromptLength(Last):
    """The last row is looked for at the prompt's length, clamped so that it never raises."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> torch.Tensor:
        last = cursor.first_token_indices_gpu + cursor.prompt_lens_cpu.to(hidden_states.device) - 1
        return hidden_states[last.clamp(max=hidden_states.shape[0] - 1)]


@bad("values", serves=("LAST",))
class LastOfTheStep(Last):
    """`hidden_states[-1]` was the last token while there was one request."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> torch.Tensor:
        return hidden_states[-1:].repeat(len(scheduled_counts(cursor)), 1)


@bad("values", serves=("CLS",))
class FirstOfTheStep(HostSplit):
    """`hidden_states[0]` was the first token while there was one request."""

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        return super().pool_cls(hidden_states, metadata)[:1].repeat(len(metadata.pooling_params), 1)


def _bounds_in(dtype: torch.dtype, cursor: PoolingCursor) -> Bounds:
    """The right bounds, as a dtype can hold them."""
    counts = torch.tensor([0, *scheduled_counts(cursor)])
    return list(pairwise(counts.cumsum(0).to(dtype).tolist()))
