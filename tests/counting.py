"""What a call costs in figures that do not depend on the machine: operations, bytes, tensors, Python calls."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.bench.prepared import Timed

_COPIES: Final = frozenset(("clone", "copy_", "cat", "concat", "stack", "_to_copy", "index", "index_select"))
"""Operators that write what is already there to another place."""
_OF_THE_HOST: Final = frozenset(("_local_scalar_dense",))
"""Seen only because someone looks: on the host `tolist` costs nothing that is dispatched."""


@dataclass(frozen=True)
class Counts:
    """What a call did."""

    operations: int
    """Operations of torch that were dispatched."""
    allocated: int
    """Tensors with memory of their own."""
    copied_bytes: int
    """Bytes written by copies."""
    python_calls: int
    """Calls of Python functions."""


class _Watch(TorchDispatchMode):
    """Notes each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.allocated = self.copied_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _OF_THE_HOST:
            return result
        self.operations += 1
        given = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        made = {_memory(tensor): tensor for tensor in _tensors(result)}
        self.allocated += sum(memory not in given for memory in made)
        if name in _COPIES:
            self.copied_bytes += sum(tensor.nbytes for tensor in made.values())
        return result


def count(timed: Timed) -> Counts:
    """Count what a call does; it is made twice, for watching operations makes Python calls of its own."""
    reset = timed.reset or (lambda: None)
    reset()
    # A first call may set something up once.
    timed.call()
    reset()
    with _python_calls() as python_calls:
        timed.call()
    reset()
    with _Watch() as watch:
        timed.call()
    return Counts(watch.operations, watch.allocated, watch.copied_bytes, len(python_calls))


@contextmanager
def _python_calls() -> Iterator[list[str]]:
    """Names of the Python functions that are called in the block."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        # What looks on is not looked at.
        if event == "call" and frame.f_code.co_filename != __file__:
            called.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _memory(tensor: torch.Tensor) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory
