"""Right results, and a wait for the device that nobody asked for."""

from collections.abc import Sequence

import torch

from impl.hostsplit import HostSplit
from oracle.metadata import PoolingCursor


class ReadPerRequest(HostSplit):
    """Asks the device about each request's first value."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        chunks = super().chunks(hidden_states, cursor)
        for chunk in chunks:
            chunk[0, 0].item()
        return chunks


class ReadPerStep(HostSplit):
    """Looks once a step whether anything is not a number."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        if hidden_states.isnan().any():
            hidden_states = hidden_states.clone()
        return super().chunks(hidden_states, cursor)


class HiddenMask(HostSplit):
    """Picks the rows through a mask, whose length the device must tell."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        mask = torch.ones(hidden_states.shape[0], dtype=torch.bool, device=hidden_states.device)
        return super().chunks(hidden_states[mask], cursor)


class BlockingUpload(HostSplit):
    """Makes an index on the host and sends it over without `non_blocking`."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        index = torch.arange(hidden_states.shape[0]).to(hidden_states.device)
        return super().chunks(hidden_states.index_select(0, index), cursor)


class CountsFromAnywhere(HostSplit):
    """Takes the counts from the device as readily as from the host."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        return hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())
