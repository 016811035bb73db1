"""Right results if copies were done when the call returns; and how to do it right."""

from collections.abc import Sequence

import torch

from impl.config import PoolerConfig
from impl.hostsplit import HostSplit
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor

MOST_ROWS = 4096


class ReadTooEarly(HostSplit):
    """Turns the rows around on the host, before they are there."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        on_host = hidden_states.to("cpu", non_blocking=True)
        self.wait(hidden_states.device)
        copied = on_host.flip(0).flip(0).to(hidden_states.device, non_blocking=True)
        return super().chunks(copied, cursor)

    def wait(self, device: torch.device) -> None:
        """Where a wait belongs."""


class ReadInTime(ReadTooEarly):
    """The same with the wait."""

    def wait(self, device: torch.device) -> None:
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()


class SourceRewritten(HostSplit):
    """Sends each request's index from the same pinned buffer, which the next request fills anew."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.buffer = torch.empty(MOST_ROWS, dtype=torch.int64, pin_memory=True)

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        chunks, start = [], 0
        for count in scheduled_counts(cursor):
            source = self.source(count)
            torch.arange(start, start + count, out=source)
            chunks.append(hidden_states.index_select(0, source.to(hidden_states.device, non_blocking=True)))
            start += count
        return chunks

    def source(self, count: int) -> torch.Tensor:
        """Pinned memory for an index."""
        return self.buffer[:count]


class SourceKept(SourceRewritten):
    """The same with a buffer of its own for each request."""

    def source(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int64, pin_memory=True)
