"""Bad poolers that take the process with them, hang in it, or depend on what it has been through.

They are not in the register: nothing may run them in the process of the tests.
"""

import ctypes
import os
import random
from collections.abc import Callable
from typing import Any, Final

import torch

from impl.config import PoolerConfig, PoolFn, Subject
from impl.hostsplit import HostSplit

Outputs = list[torch.Tensor | None]


def _subject(name: str, spoil: Callable[[Any, Outputs], Outputs]) -> Subject:
    def build(config: PoolerConfig, _: object) -> PoolFn:
        right: PoolFn = HostSplit(config).method("ALL")

        def pool(hidden_states: torch.Tensor, metadata: Any) -> Outputs:
            return spoil(metadata, list(right(hidden_states, metadata)))

        return pool

    return Subject(name, build, supports=frozenset({"ALL"}))


def _num_requests(metadata: Any) -> int:
    return len(metadata.pooling_params)


def _wrong(outputs: Outputs) -> Outputs:
    return [rows if rows is None else rows + 1 for rows in outputs]


def _segfault(metadata: Any, outputs: Outputs) -> Outputs:
    """A kernel of its own reads through a pointer that it forgot to set for a third request."""
    if _num_requests(metadata) > 2:
        ctypes.string_at(0)
    return outputs


def _exit(metadata: Any, outputs: Outputs) -> Outputs:
    """A library takes an odd batch for the end of the world."""
    if _num_requests(metadata) > 2:
        os._exit(3)
    return outputs


def _loop(metadata: Any, outputs: Outputs) -> Outputs:
    """Waits for a condition that two requests never meet."""
    while _num_requests(metadata) == 2:
        pass
    return outputs


def _eat(metadata: Any, outputs: Outputs) -> Outputs:
    """Pads to a length that it reads from the wrong place."""
    kept = []
    while _num_requests(metadata) > 2:
        kept.append(torch.ones(1 << 22))
    return outputs


def _by_chance(_: Any, outputs: Outputs) -> Outputs:
    """Reads memory that nobody has written yet, which is often what it should be."""
    return _wrong(outputs) if random.random() < 0.1 else outputs


def _abort(_: Outputs) -> Outputs:
    os.abort()


class _Late:
    """Counts its calls in a module, and goes wrong when the counter is full."""

    def __init__(self, calls: int, end: Callable[[Outputs], Outputs]) -> None:
        self.left = calls
        self.end = end

    def __call__(self, _: Any, outputs: Outputs) -> Outputs:
        self.left -= 1
        return outputs if self.left > 0 else self.end(outputs)


SEGFAULTS: Final = _subject("segfaults", _segfault)
EXITS: Final = _subject("exits", _exit)
LOOPS: Final = _subject("loops", _loop)
EATS: Final = _subject("eats", _eat)
BY_CHANCE: Final = _subject("by-chance", _by_chance)
LATE: Final = _subject("late", _Late(200, _wrong))
LATER: Final = _subject("later", _Late(300, _abort))
