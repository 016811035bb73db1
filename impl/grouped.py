"""`grouped`: one slice over the subgroup, then one split by the host's counts: the published change.

Two device reads a call, whatever the number of requests.
"""

from collections.abc import Sequence

import torch

from impl.methods import Methods, scheduled_counts
from oracle.metadata import PoolingCursor


class Grouped(Methods):
    """Takes either calling convention; relies on the subgroup being contiguous."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        """See `Methods.chunks`."""
        counts = scheduled_counts(cursor)
        if not counts:
            return []
        first = int(cursor.first_token_indices_gpu[0].item())
        last = int(cursor.last_token_indices_gpu[-1].item())
        return torch.split(hidden_states[first : last + 1], counts)
