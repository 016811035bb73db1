"""What is found as `torch.sim`, and by `torch.get_device_module` for the simulated device."""

from typing import Final

import torch

from oracle.device.record import note
from oracle.device.stream import STREAM


def is_available() -> bool:
    """Always: it is simulated."""
    return True


def is_initialized() -> bool:
    """Always: there is nothing to set up."""
    return True


def device_count() -> int:
    """There is one."""
    return 1


def current_device() -> int:
    """It is number 0."""
    return 0


def _lazy_init() -> None:
    """PyTorch calls this before it makes a tensor on the device."""


def _is_in_bad_fork() -> bool:
    """A simulated device survives a fork."""
    return False


def manual_seed_all(seed: int) -> None:
    """`torch.manual_seed` asks every device; what is random here is drawn on the host, which it seeds itself."""


def synchronize(device: torch.device | int | str | None = None) -> None:
    """Wait until all work is done and every copy has landed."""
    note("sync", "synchronize", 0, waits=True)
    STREAM.land()


class Event:
    """A place in the stream of work; as `torch.cuda.Event`, without timing."""

    def __init__(self) -> None:
        self._position = 0

    def record(self, stream: "Stream | None" = None) -> None:
        """Take the place after what was launched so far."""
        self._position = STREAM.position()

    def synchronize(self) -> None:
        """Wait until what was launched before the event is done."""
        note("sync", "event", 0, waits=True)
        STREAM.land(self._position)

    def query(self) -> bool:
        """Whether it is done; asking lets a late device go no faster."""
        return STREAM.is_done(self._position)


class Stream:
    """The one stream of work."""

    def synchronize(self) -> None:
        """Wait until all work is done."""
        synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """An event after what was launched so far."""
        event = event or Event()
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        """Nothing to do: work is done in the order in which it is launched."""

    def wait_stream(self, stream: "Stream") -> None:
        """Nothing to do: there is no other stream."""


_ONLY: Final = Stream()


def current_stream(device: torch.device | int | str | None = None) -> Stream:
    """The one stream."""
    return _ONLY
