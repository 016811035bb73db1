"""What an audit notes: every crossing between host and device, and where in the subject's code it is.

Plain data and the one record that is being written, if any. Who writes it is `device.tensor` on the
simulated device and `device.audit` on CUDA.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import torch

Way = Literal["read", "upload", "sync"]

_PASSED_BY: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent), warnings.__file__)


def is_subjects(filename: str) -> bool:
    """Whether code is neither torch's nor this package's."""
    return not filename.startswith(_PASSED_BY)


@dataclass(frozen=True)
class Crossing:
    """One time that host and device met."""

    way: Way
    """`read`: data to the host. `upload`: data to the device. `sync`: a wait without data of its own."""
    operation: str
    size_bytes: int
    waits: bool
    """Whether the host stood still for it."""
    place: str
    """File and line of the subject's code, if known."""

    def __str__(self) -> str:
        return f"{self.operation} at {self.place}" if self.place else self.operation


@dataclass
class Record:
    """What the device was asked for during an audit; `device_bytes` is what its kernels read and wrote."""

    crossings: list[Crossing] = field(default_factory=list)
    kernels: int = 0
    device_bytes: int = 0
    host_scalars: int = 0
    """0-dimensional host tensors that were passed to a kernel by value."""

    @property
    def reads(self) -> int:
        """Times that data went to the host."""
        return sum(crossing.way == "read" for crossing in self.crossings)

    @property
    def uploads(self) -> int:
        """Times that data went to the device, whether the host waited or not."""
        return sum(crossing.way == "upload" for crossing in self.crossings)

    @property
    def waiting(self) -> list[Crossing]:
        """The crossings at which the host waited."""
        return [crossing for crossing in self.crossings if crossing.waits]

    @property
    def moved_bytes(self) -> int:
        """Bytes that went from one side to the other."""
        return sum(crossing.size_bytes for crossing in self.crossings)

    def describe_waits(self) -> str:
        """How often the host waited, and for what."""
        kinds = Counter(crossing.way for crossing in self.waiting)
        names = {"read": "read", "upload": "blocking upload", "sync": "wait"}
        told = [f"{count} {names[way]}{'' if count == 1 else 's'}" for way, count in kinds.items()]
        return " and ".join(told) or "no wait"

    def places(self, waiting: bool = True) -> Counter[str]:
        """How often the host waited, or met the device at all, by operation and place."""
        return Counter(map(str, self.waiting if waiting else self.crossings))


_active: Record | None = None


def active() -> Record | None:
    """The record that is being written."""
    return _active


@contextmanager
def recording(record: Record | None) -> Iterator[None]:
    """Write to a record, or with None to none at all."""
    global _active
    before, _active = _active, record
    try:
        yield
    finally:
        _active = before


def note(way: Way, operation: str, size_bytes: int, waits: bool) -> None:
    """Add a crossing to the record that is being written, if any."""
    if _active is not None:
        _active.crossings.append(Crossing(way, operation, size_bytes, waits, place()))


def place() -> str:
    """File and line of the innermost frame that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_subjects(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
