"""A campaign: many scenarios on some subjects, within a budget, told as events.

The campaign prints nothing; readers of its events do.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Final

import torch

from fuzz.canary import CANARY
from fuzz.cause import Cause, cause
from fuzz.draws import SeededDraw
from fuzz.features import FLOOR, owed
from fuzz.findings import Finding, Findings, from_failure
from fuzz.generator import generate
from fuzz.ledger import Known, recall
from fuzz.mix import Mix, for_subjects, swarm
from fuzz.runner import Run
from fuzz.start import runs_on, start
from fuzz.together import Together, note_scenario, to_come, told
from fuzz.verdict import Judgement, Verdict
from fuzz.world import World, supports
from impl.config import Subject, SubjectError
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import Scenario

STRETCH: Final = 16
"""Scenarios drawn from one mix before the swarm moves on."""
SHRINK_TIME_S: Final = 4.0
MORE: Final = 1000
"""Scenarios that are drawn, and not run, to say what a campaign has not covered."""
FAR_AHEAD: Final = 1 << 36
"""A scenario that no campaign comes to."""
EXIT_CODES: Final = {"holds": 0, "skipped": 0, "violates": 1, "error": 2, "inconclusive": 3}
"""By how a run ended."""


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first; None is no limit."""

    max_time_s: float | None = None
    max_scenarios: int | None = None


@dataclass(frozen=True)
class Started:
    """A run begins."""

    what: str
    subjects: Sequence[str]
    seed: int | None
    device: str
    budget: Budget


@dataclass(frozen=True)
class Progressed:
    """Where a run stands."""

    scenarios: int
    comparisons: int
    findings: int
    elapsed_s: float
    now: str = ""
    missing: Sequence[str] = ()
    """Features of the mix that have not come up yet."""


@dataclass(frozen=True)
class Found:
    """A new finding."""

    finding: Finding


Event = Started | Progressed | Found
Listener = Callable[[Event], None]
Maker = Callable[[], tuple[Finding, Cause]]


@dataclass
class Report:
    """How a run ended; verdict and exit code follow from it alone."""

    subjects: list[str]
    seed: int | None
    scenarios: int = 0
    comparisons: int = 0
    findings: list[Finding] = field(default_factory=list)
    mix: Counter[str] = field(default_factory=Counter)
    together: Together = field(default_factory=dict)
    """Which features came up in one scenario."""
    verdicts: Counter[str] = field(default_factory=Counter)
    elapsed_s: float = 0.0
    doubts: list[str] = field(default_factory=list)
    """Why nothing can be concluded, if so."""
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    error: str = ""
    """What kept the run from doing all of its work, if anything."""
    skipped: str = ""
    """Why there was nothing to do, if so."""
    allows_known: bool = False
    """Whether a finding that the ledger has is no violation."""

    @property
    def covered(self) -> list[tuple[str, int]]:
        """Each feature with how many scenarios had it, the most frequent first, ties by name."""
        return sorted(self.mix.items(), key=lambda entry: (-entry[1], entry[0]))

    @property
    def unknown(self) -> list[Finding]:
        """The findings that the ledger doesn't have."""
        return [finding for finding in self.findings if not finding.known]

    @property
    def verdict(self) -> str:
        """`error`, `violates`, `inconclusive`, `skipped` or `holds`."""
        if self.error:
            return "error"
        if self.skipped:
            return "skipped"
        if self.unknown if self.allows_known else self.findings:
            return "violates"
        return "inconclusive" if self.doubts else "holds"

    @property
    def exit_code(self) -> int:
        """See `EXIT_CODES`."""
        return EXIT_CODES[self.verdict]


class Campaign:
    """Judges scenarios one by one and gathers what comes of it."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        device: torch.device,
        directory: Path | None,
        listener: Listener,
        shrinks: bool = True,
    ) -> None:
        self.subjects = subjects
        self.device = device
        self.listener = listener
        self.findings = Findings(directory)
        self.report = Report([subject.name for subject in subjects], None)
        self.shrink_time_s = SHRINK_TIME_S if shrinks else 0.0
        self.owed: set[str] = set()
        """Features that the run should have had when it is long enough."""
        self.started_s = time.monotonic()
        self._last_told_s = 0.0

    def judge(self, scenario: Scenario) -> list[Judgement]:
        """Run a scenario on each subject that serves it."""
        subjects = [subject for subject in self.subjects if supports(subject, scenario)]
        if not subjects or not runs_on(scenario, self.device):
            return []
        world = World(scenario, self.device)
        judgements = []
        for subject in subjects:
            judgement = start(world, subject).all_steps()
            judgements.append(judgement)
            self.settle(scenario, subject, judgement)
        self.report.scenarios += 1
        self.report.mix.update(note_scenario(self.report.together, scenario))
        return judgements

    def open_ledger(self, ledger: Sequence[Known]) -> None:
        """See what of the ledger the subjects have; an entry that is out of date is an error."""
        for subject in self.subjects:
            there, missing = recall(ledger, subject, self.device)
            self.findings.recalled += there
            for absent in missing:
                if subject.version or not absent.known.releases:
                    self.report.error = self.report.error or f"the ledger is out of date: {absent.told}"
                else:
                    self.report.notes.append(f"known of the newest release, but not here: {absent.told}")

    def settle(self, scenario: Scenario, subject: Subject, judgement: Judgement, make: Maker | None = None) -> None:
        """Count a judgement and keep what it shows; `make` looks into a failure that is new."""
        report = self.report
        report.comparisons += judgement.comparisons
        report.verdicts[judgement.verdict.value] += 1
        if judgement.verdict is Verdict.UNKNOWN:
            self.doubt(f"the checker failed on {subject.name}:\n{judgement.message}")
        if judgement.verdict.is_finding:
            found = self.findings.add(
                cause(subject.name, scenario, judgement),
                make or partial(from_failure, scenario, subject, judgement, self.device, self.shrink_time_s),
            )
            report.findings = list(self.findings)
            if found is not None:
                self.listener(Found(found))

    def doubt(self, why: str) -> None:
        """Note a reason, once, why the run can't be trusted."""
        if len(self.report.doubts) < 5 and why not in self.report.doubts:
            self.report.doubts.append(why)

    def tell(self, now: str = "", at_once: bool = False) -> None:
        """Say where the run stands, a few times a second."""
        elapsed_s = time.monotonic() - self.started_s
        if at_once or elapsed_s - self._last_told_s > 0.2:
            self._last_told_s = elapsed_s
            report = self.report
            missing = sorted(self.owed - set(report.mix))
            self.listener(Progressed(report.scenarios, report.comparisons, len(self.findings), elapsed_s, now, missing))

    def finish(self) -> Report:
        """Close the run; one that compared nothing proves nothing."""
        report = self.report
        self.findings.finish()
        report.findings = list(self.findings)
        report.error = self.findings.error or report.error
        report.elapsed_s = time.monotonic() - self.started_s
        if not report.scenarios:
            self.doubt("no scenario was run")
        elif not report.comparisons and not report.findings:
            self.doubt("nothing was compared: every scenario was rejected or empty")
        return report


Search = Callable[[Campaign, Mix, int, Budget], None]
"""Has a campaign judge the scenarios of a mix and a seed until the budget is spent."""


def fuzz(
    subjects: Sequence[Subject],
    budget: Budget,
    seed: int,
    device: torch.device,
    directory: Path | None = None,
    listener: Listener = lambda event: None,
    ledger: Sequence[Known] = (),
    search: Search | None = None,
) -> Report:
    """Search for scenarios on which the subjects are wrong, and tell which of these the ledger knows.

    The scenarios are run in this process, unless `search` says otherwise.

    Raises:
        SubjectError: a subject's factory can't make what it says it supports, or not on the device.
    """
    listener(Started("fuzz", [subject.name for subject in subjects], seed, str(device), budget))
    campaign = Campaign(subjects, device, directory, listener)
    campaign.report.seed = seed
    mix = for_subjects(subjects, device.type == SIMULATED)
    if not mix.levels:
        raise SubjectError(f"{', '.join(campaign.report.subjects)}: an engine makes its own tensors, not on {device}")
    campaign.owed = owed(mix)
    try:
        with torch.inference_mode():
            _sing(campaign)
            campaign.open_ledger(ledger)
            (search or in_this_process)(campaign, mix, seed, budget)
    except KeyboardInterrupt:
        campaign.report.interrupted = True
    report = campaign.finish()
    missing = campaign.owed - set(report.mix)
    if report.scenarios >= FLOOR and missing:
        campaign.doubt(f"the mix was lost: {report.scenarios} scenarios without {', '.join(sorted(missing))}")
    if report.scenarios >= FLOOR and not report.interrupted:
        report.notes.append(told(report.together, to_come(report.together, _more(campaign, mix, seed)), MORE))
    return report


def _more(campaign: Campaign, mix: Mix, seed: int) -> Iterator[Scenario]:
    """Scenarios that the campaign has not come to, and which it would run."""
    served = (
        scenario
        for scenario in scenarios(mix, seed, FAR_AHEAD)
        if runs_on(scenario, campaign.device) and any(supports(subject, scenario) for subject in campaign.subjects)
    )
    return islice(served, MORE)


def in_this_process(campaign: Campaign, mix: Mix, seed: int, budget: Budget) -> None:
    """Judge one scenario after another; a subject that ends the process ends the campaign."""
    for scenario in scenarios(mix, seed):
        if _spent(campaign, budget):
            break
        campaign.judge(scenario)
        campaign.tell()


def scenarios(mix: Mix, seed: int, first: int = 0) -> Iterator[Scenario]:
    """The scenarios of a seed from number `first` on, without end; number i depends on seed and i alone."""
    for stretch in count(first // STRETCH):
        swarmed = swarm(mix, SeededDraw(seed * 1_000_003 + stretch))
        for index in range(max(first, stretch * STRETCH), (stretch + 1) * STRETCH):
            yield generate(SeededDraw((seed << 40) + index), swarmed)


def _spent(campaign: Campaign, budget: Budget) -> bool:
    done = campaign.report.scenarios
    if budget.max_scenarios is not None and done >= budget.max_scenarios:
        return True
    return budget.max_time_s is not None and time.monotonic() - campaign.started_s >= budget.max_time_s


def _sing(campaign: Campaign) -> None:
    """Show that this very harness, on this device, catches a pooler that is wrong by design."""
    for scenario, _ in zip(scenarios(for_subjects([CANARY]), 0), range(200), strict=False):
        if Run(World(scenario, campaign.device), CANARY).all_steps().verdict is Verdict.VIOLATES:
            return
    campaign.doubt("the canary, a pooler that is wrong by design, was not caught: the harness is broken")
