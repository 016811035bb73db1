"""A caller's mistake that goes unnoticed, and rows that come out wrong for it."""

from typing import Any

import torch

from impl.hostsplit import HostSplit
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata
from tests.zoo.joints import Last, spans
from tests.zoo.register import bad


@bad("reject-or-be-right")
class ShortRowsSliced(HostSplit):
    """Slicing past the end is no error, so the last request comes out short."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        return [hidden_states[first:end] for first, end in spans(cursor)]


@bad("reject-or-be-right", serves=("LAST",))
class ShortRowsClamped(Last):
    """Indices are clamped, so that a wrong one can't stop the engine."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        last = metadata.get_pooling_cursor().last_token_indices_gpu
        return hidden_states[last.clamp(max=hidden_states.shape[0] - 1)]


@bad("reject-or-be-right")
class MissingCountsGuessed(HostSplit):
    """Counts that are missing are taken to be whole prompts, as an older caller had it."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        counts = getattr(cursor, "num_scheduled_tokens_cpu", cursor.prompt_lens_cpu).tolist()
        return [hidden_states[sum(counts[:place]) :][:count] for place, count in enumerate(counts)]


@bad("reject-or-be-right")
class CountsOnDeviceGuessed(HostSplit):
    """Counts that can't be read without a sync are replaced by an even share of the rows."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        if cursor.num_scheduled_tokens_cpu.is_cpu:
            return super().chunks(hidden_states, cursor)
        return hidden_states.tensor_split(len(cursor.num_scheduled_tokens_cpu))


@bad("reject-or-be-right", serves=("LAST",))
class GapIgnored(HostSplit):
    """Rows past the counts are cut off as padding, though here they are the last request's."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        counts = scheduled_counts(cursor)
        return hidden_states[: sum(counts)].split_with_sizes(counts)


@bad("reject-or-be-right", serves=("LAST",))
class PaddingRead(HostSplit):
    """The last request takes what is left, and padding is left."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        return hidden_states.tensor_split([first for first, _ in spans(cursor)])[1:]


@bad("reject-or-be-right", serves=("CLS",))
class PartialPromptsFirstRow(HostSplit):
    """The refusal of partial prompts was taken out, as it got in the way of chunked prefill."""

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        firsts = [chunk[:1] for chunk in self._cut(hidden_states, metadata)]
        return torch.cat([hidden_states[:0], *firsts])


@bad("reject-or-be-right", serves=("MEAN",))
class PartialPromptsMean(HostSplit):
    """A chunk's mean is taken for the prompt's."""

    @staticmethod
    def _refuse_partial_prefill(metadata: PoolingMetadata, pooling_type: str) -> None:
        """Refuse nothing."""


@bad("reject-or-be-right", serves=("MEAN",))
class OneWholePromptIsEnough(HostSplit):
    """`any` stands where `all` should, so one whole prompt lets the partial ones pass."""

    @staticmethod
    def _refuse_partial_prefill(metadata: PoolingMetadata, pooling_type: str) -> None:
        cursor = metadata.get_pooling_cursor()
        if len(metadata.prompt_lens) and not (cursor.num_scheduled_tokens_cpu == cursor.prompt_lens_cpu).any():
            raise ValueError("no prompt is whole")


@bad("reject-or-be-right")
class ErrorsSwallowed(HostSplit):
    """An exception must not stop the engine, so the rows are shared out evenly instead."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        try:
            return super().chunks(hidden_states, cursor)
        except (ValueError, RuntimeError):
            return hidden_states.tensor_split(len(cursor.prompt_lens_cpu))
