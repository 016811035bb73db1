"""Ways to search for scenarios that a subject fails: the one that campaigns take, and others to hold beside it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import combinations, count
from pathlib import Path
from random import Random
from types import FrameType, TracebackType
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis import seed as seeded_by
from hypothesis import strategies as st

from fuzz.campaign import STRETCH, scenarios
from fuzz.draws import SeededDraw
from fuzz.features import features
from fuzz.generator import generate
from fuzz.mix import Mix, swarm
from fuzz.strategies import HypothesisDraw
from oracle.scenario import Scenario

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = 64
"""Stretches after which steering forgets what came up, so that number i takes no more than these to draw."""
OFFERED: Final = 4
"""Mixes of which steering takes one."""
WATCHED: Final = tuple(str(ROOT / part) for part in ("impl/", "tests/zoo/", "fuzz/runner.py"))
"""Code whose coverage guides: the subject's and the runner's."""


Judge = Callable[[Scenario], None]
"""Takes one scenario; raises `Over` when the search is."""
Way = Callable[[Mix, int, int, Judge], None]
"""Searches by a mix and a seed, for up to so many scenarios, each of which is handed to the judge."""


class Over(BaseException):
    """The subject is caught, or the scenarios are used up.

    Not an `Exception`: Hypothesis would take it for a failure of the test, and go on.
    """


def seeded(mix: Mix, seed: int, most: int, judge: Judge) -> None:
    """As a campaign searches."""
    for scenario in scenarios(mix, seed):
        judge(scenario)


def steered(mix: Mix, seed: int, most: int, judge: Judge) -> None:
    """Towards mixes whose pairs of features came up least."""
    for stretch, swarmed in least_seen(mix, seed):
        for index in range(stretch * STRETCH, (stretch + 1) * STRETCH):
            judge(generate(SeededDraw((seed << 40) + index), swarmed))


def least_seen(mix: Mix, seed: int) -> Iterator[tuple[int, Mix]]:
    """The mix of each stretch, of those offered the one whose pairs of features came up least."""
    seen = Counter[tuple[object, object]]()
    for stretch in count():
        if stretch % BLOCK == 0:
            seen.clear()
        # The first is the one that a campaign takes.
        place = seed * 1_000_003 + stretch
        seeds = [place, *((1 << 60) + place * 16 + other for other in range(1, OFFERED))]
        offered = [swarm(mix, SeededDraw(own)) for own in seeds]
        pairs = [list(combinations(rates(each, mix), 2)) for each in offered]
        newest = max(range(OFFERED), key=lambda own: sum(1 / (1 + seen[pair]) for pair in pairs[own]))
        seen.update(pairs[newest])
        yield stretch, offered[newest]


def rates(swarmed: Mix, mix: Mix) -> list[tuple[str, int]]:
    """Each feature of a mix: off, rare, as usual or frequent; or whether a bound is widened."""
    found = []
    for name in (field.name for field in fields(mix)):
        value = getattr(swarmed, name)
        if name.startswith("p_"):
            found.append((name, (value > 0) + (value > 0.05) + (value >= 0.5)))
        elif name in ("malformed", "long_tokens", "max_requests", "hidden_sizes"):
            found.append((name, int(value != getattr(mix, name))))
    return found


def by_hypothesis(mix: Mix, seed: int, most: int, judge: Judge) -> None:
    """By Hypothesis, which draws the mix too."""
    _hypothesis(mix, seed, most, judge, aims=False)


def by_target(mix: Mix, seed: int, most: int, judge: Judge) -> None:
    """By Hypothesis, which aims at scenarios with many features."""
    _hypothesis(mix, seed, most, judge, aims=True)


def _hypothesis(mix: Mix, seed: int, most: int, judge: Judge, aims: bool) -> None:
    @st.composite
    def both(draw: st.DrawFn) -> Scenario:
        choices = HypothesisDraw(draw)
        return generate(choices, swarm(mix, choices))

    @seeded_by(seed)
    @settings(
        database=None,
        max_examples=most,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.target) if aims else (Phase.generate,),
    )
    @given(both())
    def search(scenario: Scenario) -> None:
        if aims:
            target(float(len(features(scenario))))
        judge(scenario)

    search()


class Retold(SeededDraw):
    """Replays choices, then makes its own; a choice is what the random source gave for it, from 0 to 1."""

    def __init__(self, seed: int, told: Sequence[float]) -> None:
        self.taken: list[float] = []
        fresh, left = Random(seed).random, iter(told)

        def take() -> float:
            value = next(left, None)
            self.taken.append(fresh() if value is None else value)
            return self.taken[-1]

        self._random = take


class Arcs:
    """Which line followed which in the code that is watched, and how often to a power of two."""

    def __init__(self) -> None:
        self._times = Counter[tuple[str, int, int]]()

    def __enter__(self) -> "Arcs":
        self._outer = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._outer)

    @property
    def found(self) -> set[tuple[object, int]]:
        """Each arc with the power of two."""
        return {(arc, times.bit_length()) for arc, times in self._times.items()}

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        file, before = frame.f_code.co_filename, 0
        if not file.startswith(WATCHED):
            return None

        def note(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            nonlocal before
            if event == "line":
                self._times[file, before, frame.f_lineno] += 1
                before = frame.f_lineno
            return note

        return note


def by_coverage(mix: Mix, seed: int, most: int, judge: Judge) -> None:
    """By changing the choices of scenarios that took the subject or the runner where none had been."""
    random = Random(seed)
    corpus: list[list[float]] = []
    seen: set[tuple[object, int]] = set()
    for number in count():
        told = _changed(random, corpus) if corpus and random.random() < 0.5 else []
        draw = Retold((seed << 40) + number, told)
        scenario = generate(draw, swarm(mix, draw))
        with Arcs() as arcs:
            judge(scenario)
        if not arcs.found <= seen:
            seen |= arcs.found
            corpus.append(draw.taken)


def _changed(random: Random, corpus: Sequence[list[float]]) -> list[float]:
    """One of the corpus, with up to eight choices made anew or another's from some place on."""
    told = list(random.choice(corpus))
    if random.random() < 0.3:
        cut = random.randrange(len(told))
        return told[:cut] + random.choice(corpus)[cut:]
    for _ in range(random.choice((1, 2, 4, 8))):
        told[random.randrange(len(told))] = random.random()
    return told


WAYS: Final[dict[str, tuple[Way, int, int]]] = {
    "seeded": (seeded, 1, 1),
    "steered": (steered, 1, 1),
    "coverage": (by_coverage, 4, 1),
    "hypothesis": (by_hypothesis, 4, 6),
    "target": (by_target, 4, 6),
}
"""By name, with what the numbers of seeds and of scenarios are divided by, as some take so much longer."""
