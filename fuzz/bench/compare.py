"""Whether one is faster than the other: a ratio of medians, its bootstrap interval, and what follows.

Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, ch. 13 (the percentile interval).
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from fuzz.bench.measure import Times

CONFIDENCE: Final = 0.998
"""High, because a verdict is asked for often: an identical copy is called different once in 500 runs."""
SMALLEST: Final = 0.03
"""Differences below this aren't told apart: where memory happens to lie makes as much."""
_RESAMPLES: Final = 10_000

Word = Literal["faster", "slower", "no difference seen"]


@dataclass(frozen=True)
class Comparison:
    """How long one takes beside a base: `ratio` 0.5 is half the time."""

    ratio: float
    low: float
    high: float
    """The interval in which the ratio lies, with `CONFIDENCE`."""

    @property
    def smallest_effect(self) -> float:
        """The smallest difference, as a fraction, that would have been called one."""
        return max(SMALLEST, self.high / self.ratio - 1, 1 - self.low / self.ratio)

    @property
    def verdict(self) -> Word:
        """What is told: a difference only if the whole interval lies on one side, and the ratio far enough."""
        if self.high < 1 and self.ratio < 1 / (1 + SMALLEST):
            return "faster"
        if self.low > 1 and self.ratio > 1 + SMALLEST:
            return "slower"
        return "no difference seen"


def compare(base: Times, other: Times, seed: int = 0) -> Comparison:
    """Compare samples (rounds,) that were taken in the same rounds.

    Rounds are drawn with their pair of samples, so that a round on a busy machine counts for both.
    """
    rounds = len(base)
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    ratios = np.median(other[drawn], axis=1) / np.median(base[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, (tail, 1 - tail))
    return Comparison(float(np.median(other) / np.median(base)), float(low), float(high))
