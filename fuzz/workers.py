"""A campaign in worker processes: what they found is merged in the order of the scenarios, and kept to be resumed.

Merging in order makes the findings those of a single process, whatever the number of workers.
"""

import time
from collections import Counter
from functools import partial
from typing import Final

from fuzz.campaign import Budget, Campaign, Search
from fuzz.crew import Crew, Outcome
from fuzz.examine import Examiner
from fuzz.expendable import Limits
from fuzz.explain import counted
from fuzz.jobs import Setup
from fuzz.mix import Mix
from fuzz.state import Keeper, State, alone_in
from fuzz.verdict import Verdict

MAX_HANGS: Final = 5
"""Hangs of a subject after which a campaign ends, for each takes the whole limit."""


def in_workers(size: int, limits: Limits, state: State | None = None) -> Search:
    """A search in so many worker processes, which goes on from `state` if there is one."""
    return partial(_search, size, limits, state)


def _search(
    size: int, limits: Limits, state: State | None, campaign: Campaign, mix: Mix, seed: int, budget: Budget
) -> None:
    until_s = None if budget.max_time_s is None else time.monotonic() + budget.max_time_s
    setup = Setup(campaign.subjects, campaign.device, mix, seed)
    with alone_in(campaign.findings.directory):
        if state is not None:
            state.restore(campaign)
        keeper = Keeper(campaign, state.next if state else 0)
        keeper.keep()
        try:
            with Crew(setup, size, limits, keeper.next) as crew:
                crew.until_s = until_s
                crew.tick = campaign.tell
                _work(campaign, crew, Examiner(crew, campaign.subjects, seed, campaign.shrink_time_s), keeper, budget)
        finally:
            keeper.keep()


def _work(campaign: Campaign, crew: Crew, examiner: Examiner, keeper: Keeper, budget: Budget) -> None:
    hangs = Counter[int]()
    while True:
        if budget.max_scenarios is not None:
            crew.may_go_out = crew.next + budget.max_scenarios - campaign.report.scenarios
        if crew.is_done:
            break
        crew.work()
        for outcome in crew.in_order():
            _merge(campaign, outcome, examiner)
            keeper.next = outcome.played.stop
            keeper.keep_now_and_then()
            if examiner.interrupted:
                campaign.report.interrupted = True
                return
            hangs.update(fell.position for fell in outcome.fell if fell.judgement.verdict is Verdict.HANGS)
            if max(hangs.values(), default=0) >= MAX_HANGS:
                campaign.report.notes.append(
                    f"ended after {counted(hangs.total(), 'hang')}, each of which takes {crew.limits.scenario_s:g} s"
                )
                return
    for warning in crew.warnings:
        campaign.doubt(warning)


def _merge(campaign: Campaign, outcome: Outcome, examiner: Examiner) -> None:
    report, played = campaign.report, outcome.played
    report.scenarios += played.scenarios
    report.comparisons += played.comparisons
    report.mix += played.mix
    report.verdicts += played.verdicts
    for fell in outcome.fell:
        campaign.settle(fell.scenario, campaign.subjects[fell.position], fell.judgement, partial(examiner, fell))
