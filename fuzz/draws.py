"""Where choices come from: the generator is written once, against `Draw`.

A Hypothesis draw searches and shrinks; a seeded one searches fast; an exhaustive one takes every
choice in turn, so that a small scope is proved rather than sampled.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw(ABC):
    """A source of choices."""

    @abstractmethod
    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included; small ones are simpler."""

    @abstractmethod
    def chance(self, probability: float) -> bool:
        """True with a probability, and certainly False at 0 and True at 1; False is simpler."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; earlier ones are simpler."""
        return options[self.integer(0, len(options) - 1)]


class SeededDraw(Draw):
    """Pseudo-random choices from a seed: the fast one."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """See `Draw.integer`; uniform."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """See `Draw.chance`."""
        return self._random() < probability


class ExhaustiveDraw(Draw):
    """Replays a prefix of choices, then takes the first of each; `exhaust` walks them all."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self.taken: list[int] = []
        self.sizes: list[int] = []

    def integer(self, low: int, high: int) -> int:
        """See `Draw.integer`."""
        place = len(self.taken)
        choice = self._prefix[place] if place < len(self._prefix) else 0
        self.taken.append(choice)
        self.sizes.append(high - low + 1)
        return low + choice

    def chance(self, probability: float) -> bool:
        """See `Draw.chance`: both, unless the probability is 0 or 1."""
        return probability >= 1 or (probability > 0 and self.integer(0, 1) == 1)


def exhaust(generate: Callable[[Draw], T]) -> Iterator[T]:
    """Everything that `generate` can return, one result for each path of choices."""
    prefix: list[int] | None = []
    while prefix is not None:
        draw = ExhaustiveDraw(prefix)
        yield generate(draw)
        prefix = _next(draw.taken, draw.sizes)


def _next(taken: list[int], sizes: list[int]) -> list[int] | None:
    """The next path in depth-first order: raise the last choice that can be raised."""
    for place in range(len(taken) - 1, -1, -1):
        if taken[place] + 1 < sizes[place]:
            return [*taken[:place], taken[place] + 1]
    return None
