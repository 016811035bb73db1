"""What processes do for a campaign, each job a function: play a range, judge one scenario, shrink, follow a history.

Runs inside `fuzz.expendable`, so everything here may die of the subject.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import torch

from fuzz.campaign import scenarios
from fuzz.expendable import OUT_OF_MEMORY, Watch
from fuzz.findings import NOT_SERVED, Failure, Span, shrunk
from fuzz.mix import Mix
from fuzz.start import runs_on, start
from fuzz.together import Together, note, note_scenario
from fuzz.verdict import Judgement, Verdict
from fuzz.world import World, supports
from impl.config import Subject, SyncBudget
from impl.loading import load
from oracle.scenario import Scenario

_NO_MEMORY: Final = ("MemoryError", "can't allocate memory")


@dataclass(frozen=True)
class Setup:
    """What a process works with."""

    subjects: Sequence[Subject]
    device: torch.device
    mix: Mix
    seed: int


def reloaded(specs: Sequence[tuple[str, dict[str, SyncBudget]]], device: str, mix: Mix, seed: int) -> Setup:
    """The setup of a process that inherits nothing: subjects are loaded by their specs.

    Raises:
        SubjectError: one of them can't be had.
    """
    subjects = [replace(load(spec), sync_budgets=budgets) for spec, budgets in specs]
    return Setup(subjects, torch.device(device), mix, seed)


@dataclass
class Played:
    """What came of a range of scenarios."""

    stop: int
    """The first scenario that is not in it."""
    scenarios: int = 0
    comparisons: int = 0
    mix: Counter[str] = field(default_factory=Counter)
    together: Together = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, int, Scenario, Judgement]] = field(default_factory=list)
    """Index, place of the subject, scenario and judgement of what failed or is not known; in none of the counts."""

    def add(self, other: "Played") -> None:
        """Count another range too, but not its failures."""
        self.scenarios += other.scenarios
        self.comparisons += other.comparisons
        self.mix += other.mix
        note(self.together, other.together)
        self.verdicts += other.verdicts


def play(setup: Setup, watch: Watch, first: int, stop: int, spared: Sequence[int]) -> Played:
    """Judge the scenarios of a range on each subject but the `spared` ones."""
    played = Played(stop)
    for index, scenario in zip(range(first, stop), scenarios(setup.mix, setup.seed, first), strict=False):
        judgements = _on_each(setup, watch, index, scenario, spared)
        if judgements is None:
            continue
        played.scenarios += 1
        played.mix.update(note_scenario(played.together, scenario))
        for position, judgement in judgements:
            if judgement.verdict.is_finding or judgement.verdict is Verdict.UNKNOWN:
                played.failures.append((index, position, scenario, judgement))
            else:
                played.comparisons += judgement.comparisons
                played.verdicts[judgement.verdict.value] += 1
    return played


def alone(
    setup: Setup, watch: Watch, scenario: Scenario, position: int, index: int = 0, limit_s: float | None = None
) -> Judgement:
    """Judge one scenario on one subject."""
    watch.begin(index, position, limit_s)
    judgement = _judged(World(scenario, setup.device), setup.subjects[position])
    watch.rest()
    return judgement


def smaller(setup: Setup, watch: Watch, failure: Failure, position: int, max_time_s: float) -> Scenario:
    """The smallest scenario that fails like this one; each step on the way is told, for it may end the process."""

    def judge(candidate: Scenario) -> Judgement:
        served = supports(setup.subjects[position], candidate)
        return alone(setup, watch, candidate, position) if served else NOT_SERVED

    if not failure.is_shown_by(failure.scenario, judge(failure.scenario)):
        return failure.scenario
    return shrunk(failure, judge, max_time_s, watch.tell)


def follow(
    setup: Setup, watch: Watch, spans: Sequence[Span], scenario: Scenario, position: int, index: int
) -> Judgement:
    """Judge a scenario in a process that has been through others before."""
    for first, stop in spans:
        for before, drawn in enumerate(islice(scenarios(setup.mix, setup.seed, first), stop - first), first):
            _on_each(setup, watch, before, drawn, ())
    for earlier in range(position):
        if supports(setup.subjects[earlier], scenario):
            alone(setup, watch, scenario, earlier, index)
    return alone(setup, watch, scenario, position, index)


def _on_each(
    setup: Setup, watch: Watch, index: int, scenario: Scenario, spared: Sequence[int]
) -> list[tuple[int, Judgement]] | None:
    """What becomes of a scenario on each subject that serves it, None if none does."""
    positions = [place for place, subject in enumerate(setup.subjects) if supports(subject, scenario)]
    if not positions or not runs_on(scenario, setup.device):
        return None
    judgements = []
    watch.begin(index, positions[0])
    world = World(scenario, setup.device)
    for position in positions:
        if position not in spared:
            watch.begin(index, position)
            judgements.append((position, _judged(world, setup.subjects[position])))
    watch.rest()
    return judgements


def _judged(world: World, subject: Subject) -> Judgement:
    """Run a world's scenario; where the subject has left no memory for the checker, that is its end."""
    with torch.inference_mode():
        judgement = start(world, subject).all_steps()
    if judgement.verdict is Verdict.UNKNOWN and any(sign in judgement.message for sign in _NO_MEMORY):
        os._exit(OUT_OF_MEMORY)
    return judgement
