"""Right results, from memory that is not the pooler's own, or more of it than is due."""

from collections.abc import Sequence

import torch

from impl.hostsplit import HostSplit
from oracle.metadata import PoolingCursor, PoolingMetadata


class ViewKept(HostSplit):
    """Keeps views of the step's buffer for the next step."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        outputs = super().pool_all(hidden_states, metadata)
        chunks = self.chunks(hidden_states, metadata.get_pooling_cursor())
        for chunk, output, state in zip(chunks, outputs, metadata.pooling_states, strict=True):
            if output is None:
                state.hidden_states_cache[-1] = chunk
        return outputs


class BufferPinned(HostSplit):
    """Copies the whole buffer once and keeps views of the copy: each holds all of it."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        outputs = super().pool_all(hidden_states, metadata)
        chunks: Sequence[torch.Tensor] = self.chunks(hidden_states.clone(), metadata.get_pooling_cursor())
        for chunk, output, state in zip(chunks, outputs, metadata.pooling_states, strict=True):
            if output is None:
                state.hidden_states_cache[-1] = chunk
        return outputs


class InputCleared(HostSplit):
    """Clears the step's buffer behind itself."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        chunks = [chunk.clone() for chunk in super().chunks(hidden_states, cursor)]
        hidden_states.zero_()
        return chunks
