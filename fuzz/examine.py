"""What a failure is worth: whether it shows again in a fresh process, how small it gets, what it takes if not.

Everything is run in processes of its own, since the subject may end them.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fuzz.cause import Cause
from fuzz.crew import Crew
from fuzz.expendable import Death
from fuzz.findings import NOT_SERVED, Before, Failure, Finding, Span, shrunk
from fuzz.jobs import alone, follow, smaller
from fuzz.ranges import Fell
from fuzz.verdict import Judgement, Verdict
from fuzz.world import supports
from impl.config import Subject
from oracle import contracts
from oracle.scenario import Scenario

DEATHS: Final = ("comes-back", "process-survives")
"""Contracts that take the process with them when they are broken."""
RUNS: Final = 2
"""Fresh processes that a failure has to show in, all of them, to be told as it is."""
MORE_RUNS: Final = 3
"""More of them, where it did not show in each."""
CAREFUL_SHRINK_S: Final = 20.0
"""For shrinking with a process for each candidate, which hold some 40 a second."""
HASTE: Final = 10
"""While shrinking, a candidate is taken to hang this many times sooner; what is told is run under the full limit."""
LOOK_BACK_S: Final = 20.0
"""For finding how many scenarios have to be run before, in the same process."""


class Examiner:
    """Looks into failures, with fresh processes of a crew."""

    def __init__(self, crew: Crew, subjects: Sequence[Subject], seed: int, shrink_time_s: float) -> None:
        self._crew = crew
        self._subjects = subjects
        self._seed = seed
        self._shrink_time_s = shrink_time_s
        self._looked_back = 1
        """How far it took the last time, which is where to begin the next."""

    def __call__(self, fell: Fell) -> tuple[Finding, Cause]:
        """A finding, and what is known of its cause."""
        failure = fell.failure(self._subjects)
        hangs = failure.judgement.verdict is Verdict.HANGS
        runs, more_runs = (1, 1) if hangs else (RUNS, MORE_RUNS)
        if failure.judgement.contract in DEATHS:
            small = self._carefully(fell, failure, self._crew.limits.scenario_s / HASTE if hangs else None)
        else:
            small = self._hastily(fell, failure)
        answers = self._answers(fell, small, runs)
        if small != fell.scenario and not _shown(failure, small, answers):
            # It fails in the process that shrank it, or within a shorter time, but not alone.
            small = fell.scenario
            answers = self._answers(fell, small, runs)
            if not hangs and len(_shown(failure, small, answers)) == runs:
                small = self._carefully(fell, failure, None)
                answers = self._answers(fell, small, runs)
        shown = _shown(failure, small, answers)
        if len(shown) == runs:
            failure = replace(failure, scenario=small, judgement=shown[0])
            return failure.told()
        answers += self._answers(fell, small, more_runs)
        shown = _shown(failure, small, answers)
        if shown:
            failure = replace(failure, scenario=small, judgement=shown[0])
        before = None if shown else self._before(fell, failure)
        seen = failure.finding()
        if before is not None:
            told = (
                f"run alone it {_outcome(answers[0])}, but after {before.count:,} others in the same process it breaks "
                f"{seen.contract}: {seen.message}"
            )
            return _unstable(
                failure, "state-determines-behaviour", str(contracts.state_determines_behaviour(told)), before
            )
        again = f"run again in {len(answers)} fresh processes, in {len(shown)} of them it breaks"
        told = f"{again} {seen.contract}: {seen.message}"
        if not shown:
            before = Before(self._seed, self._specs, fell.past.spans())
        return _unstable(failure, "same-answer-again", str(contracts.same_answer_again(told)), before)

    @property
    def _specs(self) -> tuple[str, ...]:
        return tuple(subject.spec for subject in self._subjects)

    def _answers(self, fell: Fell, scenario: Scenario, runs: int) -> list[Judgement]:
        """What becomes of a scenario alone, in fresh processes."""
        return [self._alone(fell, scenario, None) for _ in range(runs)]

    def _alone(self, fell: Fell, scenario: Scenario, limit_s: float | None) -> Judgement:
        return self._crew.judgement(alone, scenario, fell.position, fell.index, limit_s)

    def _hastily(self, fell: Fell, failure: Failure) -> Scenario:
        """Shrink in one process; if that ends, with what it had reached."""
        reached = [failure.scenario]
        arguments = failure, fell.position, self._shrink_time_s
        most_s = self._shrink_time_s + 2 * self._crew.limits.scenario_s
        answer = self._crew.ask(smaller, *arguments, max_time_s=most_s, hear=reached.append)
        return answer if isinstance(answer, Scenario) else reached[-1]

    def _carefully(self, fell: Fell, failure: Failure, limit_s: float | None) -> Scenario:
        """Shrink with a process for each candidate."""
        subject = self._subjects[fell.position]

        def judge(candidate: Scenario) -> Judgement:
            return self._alone(fell, candidate, limit_s) if supports(subject, candidate) else NOT_SERVED

        return shrunk(failure, judge, min(CAREFUL_SHRINK_S, 5 * self._shrink_time_s))

    def _before(self, fell: Fell, failure: Failure) -> Before | None:
        """The scenarios after which it fails, the last ones before it; None if it doesn't, or not in time."""
        spans = fell.past.spans()
        most = sum(stop - first for first, stop in spans)
        deadline_s = time.monotonic() + LOOK_BACK_S
        count = self._looked_back
        while most and (left_s := deadline_s - time.monotonic()) > 0:
            last = last_of(spans, count)
            seen = self._crew.ask(follow, last, fell.scenario, fell.position, fell.index, max_time_s=left_s)
            if isinstance(seen, Death) and seen.index == fell.index:
                seen = self._crew.judged(seen)
            if isinstance(seen, Judgement) and failure.is_shown_by(fell.scenario, seen):
                self._looked_back = count
                return Before(self._seed, self._specs, last)
            if count >= most:
                return None
            count *= 2
        return None


def last_of(spans: Sequence[Span], count: int) -> tuple[Span, ...]:
    """The last so many scenarios of some spans."""
    kept: list[Span] = []
    for first, stop in reversed(spans):
        if count <= 0:
            break
        kept.append((max(first, stop - count), stop))
        count -= stop - kept[-1][0]
    return tuple(reversed(kept))


def _shown(failure: Failure, scenario: Scenario, answers: Sequence[Judgement]) -> list[Judgement]:
    """Those in which it fails as it did."""
    return [answer for answer in answers if failure.is_shown_by(scenario, answer)]


def _outcome(judgement: Judgement) -> str:
    return f"breaks {judgement.contract}" if judgement.verdict.is_finding else judgement.verdict.value


def _unstable(failure: Failure, contract: str, message: str, before: Before | None) -> tuple[Finding, Cause]:
    """What fails by chance, or after others only; it stands for whatever fails like it, since nothing tells which."""
    finding = replace(
        failure.finding(), verdict=Verdict.UNSTABLE.value, contract=contract, message=message, before=before
    )
    return finding, replace(failure.cause, needs=frozenset())
