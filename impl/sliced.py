"""`sliced`: each request cut out through device index tensors, as vLLM did in 0.18 to 0.20.

Every bound is read back from the device: two reads a request.
"""

from collections.abc import Sequence

import torch

from impl.methods import CursorError, Methods
from oracle.metadata import PoolingCursor


class Sliced(Methods):
    """Takes either calling convention, for it uses whatever rows the indices name."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        """See `Methods.chunks`."""
        chunks = []
        for first_index, last_index in zip(cursor.first_token_indices_gpu, cursor.last_token_indices_gpu, strict=True):
            first, last = int(first_index), int(last_index)
            chunk = hidden_states[first : last + 1]
            # Slicing past the end is silent.
            if chunk.shape[0] != last + 1 - first:
                raise CursorError(f"rows {first} to {last} go past the {hidden_states.shape[0]} of hidden_states")
            chunks.append(chunk)
        return chunks
