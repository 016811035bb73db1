"""`hostsplit`: one split of the group's own rows by the host's counts. No device read at all."""

from collections.abc import Sequence

import torch

from impl.methods import Methods, scheduled_counts
from oracle.metadata import PoolingCursor


class HostSplit(Methods):
    """Takes the group's own rows only: without device indices it can't know where a group starts."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        """See `Methods.chunks`."""
        return hidden_states.split_with_sizes(scheduled_counts(cursor))
