"""A campaign in worker processes: what they found is merged in the order of the scenarios, and kept to be resumed.

Merging in order makes the findings those of a single process, whatever the number of workers and wherever they are.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final, Protocol

from fuzz.campaign import Budget, Campaign, Search
from fuzz.cause import Cause
from fuzz.crew import Crew
from fuzz.examine import Examiner
from fuzz.expendable import Limits
from fuzz.explain import counted
from fuzz.findings import Finding
from fuzz.jobs import Setup
from fuzz.mix import Mix
from fuzz.ranges import Fell, Outcome, Ranges
from fuzz.state import Keeper, State, alone_in
from fuzz.together import note
from fuzz.verdict import Verdict

MAX_HANGS: Final = 5
"""Hangs of a subject after which a campaign ends, for each takes the whole limit."""

Examine = Callable[[Fell], tuple[Finding, Cause]]
"""Finds out what a failure is worth, and why it fails."""


class Hands(Protocol):
    """Those who play the ranges of a campaign."""

    limits: Limits
    ranges: Ranges
    warnings: list[str]
    """Why what they say can't be trusted, if so."""

    def work(self) -> None:
        """Hand out what may go out, and take in what comes back within a moment."""


Hire = Callable[[Campaign, Setup, int], AbstractContextManager[tuple[Hands, Examine]]]
"""Gets them for a campaign that goes on from a scenario."""


def in_workers(size: int, limits: Limits, state: State | None = None) -> Search:
    """A search in so many worker processes, which goes on from `state` if there is one."""
    return by_hands(partial(_crew, size, limits), state)


def by_hands(hire: Hire, state: State | None) -> Search:
    """A search by those who are hired for it, which goes on from `state` if there is one."""
    return partial(_search, hire, state)


@contextmanager
def _crew(size: int, limits: Limits, campaign: Campaign, setup: Setup, first: int) -> Iterator[tuple[Crew, Examiner]]:
    with Crew(setup, size, limits, first) as crew:
        crew.tick = campaign.tell
        yield crew, Examiner(crew, campaign.subjects, setup.seed, campaign.shrink_time_s)


def _search(hire: Hire, state: State | None, campaign: Campaign, mix: Mix, seed: int, budget: Budget) -> None:
    until_s = None if budget.max_time_s is None else time.monotonic() + budget.max_time_s
    setup = Setup(campaign.subjects, campaign.device, mix, seed)
    with alone_in(campaign.findings.directory):
        if state is not None:
            state.restore(campaign)
        keeper = Keeper(campaign, state.next if state else 0)
        keeper.keep()
        try:
            with hire(campaign, setup, keeper.next) as (hands, examine):
                hands.ranges.until_s = until_s
                _work(campaign, hands, _Examination(campaign, examine), keeper, budget)
        finally:
            keeper.keep()


def _work(campaign: Campaign, hands: Hands, examine: "_Examination", keeper: Keeper, budget: Budget) -> None:
    hangs = Counter[int]()
    ranges = hands.ranges
    while True:
        if budget.max_scenarios is not None:
            ranges.may_go_out = ranges.next + budget.max_scenarios - campaign.report.scenarios
        if ranges.is_done:
            break
        hands.work()
        for outcome in ranges.in_order():
            _merge(campaign, outcome, examine)
            keeper.next = outcome.played.stop
            keeper.keep_now_and_then()
            if examine.interrupted:
                campaign.report.interrupted = True
                return
            hangs.update(fell.position for fell in outcome.fell if fell.judgement.verdict is Verdict.HANGS)
            if max(hangs.values(), default=0) >= MAX_HANGS:
                campaign.report.notes.append(
                    f"ended after {counted(hangs.total(), 'hang')}, each of which takes {hands.limits.scenario_s:g} s"
                )
                return
    for warning in hands.warnings:
        campaign.doubt(warning)


def _merge(campaign: Campaign, outcome: Outcome, examine: Examine) -> None:
    report, played = campaign.report, outcome.played
    report.scenarios += played.scenarios
    report.comparisons += played.comparisons
    report.mix += played.mix
    note(report.together, played.together)
    report.verdicts += played.verdicts
    for fell in outcome.fell:
        campaign.settle(fell.scenario, campaign.subjects[fell.position], fell.judgement, partial(examine, fell))


class _Examination:
    """Examines until Ctrl-C, and tells a failure as it was seen from then on."""

    def __init__(self, campaign: Campaign, examine: Examine) -> None:
        self.interrupted = False
        self._campaign = campaign
        self._examine = examine

    def __call__(self, fell: Fell) -> tuple[Finding, Cause]:
        try:
            if not self.interrupted:
                return self._examine(fell)
        except KeyboardInterrupt:
            self.interrupted = True
        return fell.failure(self._campaign.subjects).told()
