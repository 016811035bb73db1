"""The pre-merge check of several subjects, each in a process of its own, so that none can disturb another.

The check steps through states too fast to note each, so where a subject ends its process, a search over the fixed
scenarios, in workers that can be replaced, shows by which one.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from fuzz.campaign import Budget, Event, Found, Listener, Progressed, Report, Started, fuzz
from fuzz.check import FIXED_SCENARIOS, FIXED_SEED, check_one
from fuzz.expendable import Death, Done, Expendable, Failed, Limits, Told, Watch, context_for, limits_on, wait_for
from fuzz.findings import Finding, relative
from fuzz.ledger import Known
from fuzz.workers import in_workers
from impl.config import Subject
from impl.loading import load
from oracle.device.named import named
from oracle.scenario import Scenario

LIMITS: Final = Limits(scenario_s=30.0)
"""For what lies between two signs of life, shrinking included."""
INSTEAD: Final = "what is told comes from a search instead"
"""How a note ends that says that a check came to no end."""


def check(
    specs: Sequence[str],
    device: torch.device,
    directory: Path | None,
    listener: Listener,
    fixed: Sequence[Scenario] = (),
    sync_budget: int | None = None,
    ledger: Sequence[Known] = (),
) -> Report:
    """Judge each subject named by its spec, on the scenarios of `fixed` besides those that ship.

    The report tells which findings the ledger knows. A `sync_budget` takes the place of what each subject declares.

    Raises:
        SubjectError: a subject can't be had.
    """
    subjects = [load(spec, sync_budget) for spec in specs]
    listener(Started("check", [subject.name for subject in subjects], None, str(device), Budget()))
    limits = limits_on(device, LIMITS)
    reports: dict[int, Report] = {}
    running: dict[int, Expendable] = {}
    findings: list[list[Finding]] = [[] for _ in specs]
    progress: dict[int, Progressed] = {}
    waiting = list(range(len(specs)))
    try:
        while len(reports) < len(specs):
            while waiting and len(running) <= (os.cpu_count() or 1):
                place = waiting.pop(0)
                make = _maker(subjects[place], specs[place], device, sync_budget)
                running[place] = Expendable(context_for(device), make, limits, place)
                running[place].give(_check_subject, str(device), directory, fixed, ledger)
            wait_for(list(running.values()), 0.2)
            for place, process in list(running.items()):
                match process.read():
                    case Told(Found() as event):
                        findings[place].append(event.finding)
                        listener(event)
                    case Told(Progressed() as event):
                        progress[place] = event
                        listener(_together(list(progress.values())))
                    case Done(report):
                        reports[place] = report
                    case Failed(error):
                        raise error
                    case Death() as death:
                        reports[place] = _searched(subjects[place], death, device, directory, listener, ledger)
                if place in reports:
                    running.pop(place).kill()
    except KeyboardInterrupt:
        for place in {*range(len(specs))} - {*reports}:
            reports[place] = Report([subjects[place].name], None, findings=findings[place], interrupted=True)
            reports[place].doubts.append("the check was interrupted")
    finally:
        for process in running.values():
            process.kill()
    return merged([reports[place] for place in sorted(reports)])


def _maker(subject: Subject, spec: str, device: torch.device, sync_budget: int | None) -> Callable[[], Subject]:
    """How a process comes by its subject: a fork has it already, but CUDA does not survive one."""
    return partial(load, spec, sync_budget) if device.type == "cuda" else lambda: subject


def _check_subject(
    subject: Subject,
    watch: Watch,
    device: str,
    directory: Path | None,
    fixed: Sequence[Scenario],
    ledger: Sequence[Known],
) -> Report:
    """Check a subject in this process; each event is a sign of life."""

    def tell(event: Event) -> None:
        # Nobody may listen for a while: that is not the subject's time.
        watch.rest()
        if not isinstance(event, Started):
            watch.tell(event)
        watch.begin(0, 0)

    watch.begin(0, 0)
    return check_one(subject, named(device), directory, tell, fixed, ledger)


def _searched(
    subject: Subject,
    death: Death,
    device: torch.device,
    directory: Path | None,
    listener: Listener,
    ledger: Sequence[Known],
) -> Report:
    """What a search shows of a subject that has ended the process of its check."""

    def tell(event: Event) -> None:
        if not isinstance(event, Started):
            listener(event)

    at = f" at {relative(death.place)}" if death.place else ""
    how = (
        f"the check of {subject.name} did not come back" if death.hangs else f"the check of {subject.name} {death.how}"
    )
    budget = Budget(max_scenarios=FIXED_SCENARIOS)
    report = fuzz([subject], budget, FIXED_SEED, device, directory, tell, ledger, in_workers(1, Limits()))
    report.seed = None
    report.notes.append(f"{how}{at}; {INSTEAD}")
    if not report.findings:
        report.doubts.append(f"{how}{at}, and a search does not show on which scenario")
    return report


def _together(progress: Sequence[Progressed]) -> Progressed:
    return Progressed(
        scenarios=sum(own.scenarios for own in progress),
        comparisons=sum(own.comparisons for own in progress),
        findings=sum(own.findings for own in progress),
        elapsed_s=max(own.elapsed_s for own in progress),
        now=progress[-1].now,
    )


def merged(reports: Sequence[Report]) -> Report:
    """One report out of several."""
    whole = Report([], reports[0].seed)
    for report in reports:
        whole.subjects += report.subjects
        whole.scenarios += report.scenarios
        whole.comparisons += report.comparisons
        whole.findings += report.findings
        whole.mix += report.mix
        whole.verdicts += report.verdicts
        whole.doubts += report.doubts
        whole.notes += report.notes
        whole.elapsed_s = max(whole.elapsed_s, report.elapsed_s)
        whole.interrupted |= report.interrupted
        whole.error = whole.error or report.error
    return whole
