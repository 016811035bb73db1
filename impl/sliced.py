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
        bounds = zip(cursor.first_token_indices_gpu, cursor.last_token_indices_gpu, strict=True)
        chunks = [hidden_states[first : last + 1] for first, last in bounds]
        # Slicing past the end is silent, so a missing row shows only in the last chunk's length.
        if chunks and chunks[-1].shape[0] < _last_span(cursor):
            raise CursorError(f"the last request's span goes past the {hidden_states.shape[0]} rows of hidden_states")
        return chunks


def _last_span(cursor: PoolingCursor) -> int:
    """Rows that the last request's device indices name."""
    return int(cursor.last_token_indices_gpu[-1] - cursor.first_token_indices_gpu[-1]) + 1
