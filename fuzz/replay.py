"""A saved finding, scenario or trace, run again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import torch

from fuzz.campaign import Budget, Campaign, Listener, Report, Started
from fuzz.crew import Crew
from fuzz.expendable import Limits
from fuzz.features import features
from fuzz.findings import Before, Failure, Finding, finding_from
from fuzz.jobs import Setup, follow
from fuzz.mix import for_subjects
from fuzz.start import runs_on
from fuzz.trace import Trace, trace_from, trace_of, write
from fuzz.trace import compared as compared_traces
from fuzz.verdict import Judgement
from fuzz.world import supports
from impl.config import Subject, SubjectError
from impl.loading import load
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import Scenario, from_builtins, parse_json

CHANCES: Final = 20
"""Fresh processes in which a finding that shows by chance is tried before it is held to be gone."""


def replay(
    file: Path,
    specs: Sequence[str],
    device: torch.device,
    listener: Listener,
    sync_budget: int | None = None,
    alone: bool = False,
    trace: Path | None = None,
) -> Report:
    """Run what the file holds, a finding, a scenario or a trace, on the subjects, or on the one that it names.

    Each runs in a process of its own. A `sync_budget` takes the place of what the subjects declare. `alone` leaves
    out what the finding takes to have been run before. What an engine does is written to `trace`.

    Raises:
        ScenarioError: the file is damaged or of another version.
        SubjectError: no subject is named, or it doesn't serve the scenario.
        OSError: the file can't be read, or the trace not be written.
    """
    return _replayed(_kept_in(file), file, specs, device, listener, sync_budget, alone, trace)


def _kept_in(file: Path) -> Scenario | Finding | Trace:
    data = parse_json(file.read_bytes())
    match data:
        case {"kind": "trace"}:
            return trace_from(data)
        case {"kind": "finding"}:
            return finding_from(data, str(file))
    return from_builtins(data)


def _replayed(
    kept: Scenario | Finding | Trace,
    file: Path,
    specs: Sequence[str],
    device: torch.device,
    listener: Listener,
    sync_budget: int | None = None,
    alone: bool = False,
    trace: Path | None = None,
) -> Report:
    finding = kept if isinstance(kept, Finding) else None
    before = None if specs or alone or finding is None else finding.before
    if isinstance(kept, Scenario):
        scenario = kept
        if not specs:
            raise SubjectError(f"{file} holds a scenario, not a finding: say with --subject on what to run it")
    else:
        scenario = kept.scenario
        specs = specs or [kept.spec]
    if trace is not None and len(specs) > 1:
        raise SubjectError("a trace is of one engine: name one --subject")
    subjects = [load(spec, sync_budget) for spec in specs]
    listener(Started("replay", [subject.name for subject in subjects], None, str(device), Budget()))
    campaign = Campaign(subjects, device, None, listener, shrinks=False)
    for subject in subjects:
        if not supports(subject, scenario):
            raise SubjectError(
                f"{subject.name} doesn't serve this scenario: it asks for level {scenario.options.level}, rows "
                f"{scenario.options.rows} and {', '.join(sorted({*map(scenario.pooling_type, scenario.requests)}))}"
                + (f"; {subject.name} lacks {', '.join(sorted(subject.lacks))}" if subject.lacks else "")
            )
    if not runs_on(scenario, device):
        raise SubjectError(f"{file} is for an engine, which makes its own tensors: replay it with --device cpu or cuda")
    tries = CHANCES if finding is not None and finding.verdict == "unstable" else 1
    traces = []
    for subject in subjects:
        for judgement in islice(_judgements(scenario, subject, device, before, sync_budget), tries):
            if judgement.verdict.is_finding:
                break
        failure = Failure(scenario, subject.name, subject.spec, judgement)
        campaign.settle(scenario, subject, judgement, failure.told)
        if isinstance(kept, Trace) or trace is not None:
            traces.append(trace_of(scenario, subject.spec, judgement))
    campaign.report.scenarios += 1
    campaign.report.mix.update(features(scenario))
    report = campaign.finish()
    if finding is not None:
        report.notes.append(compared(finding, report.findings))
    if isinstance(kept, Trace):
        report.notes += [compared_traces(kept, now) for now in traces]
    if trace is not None:
        write(trace, traces[0])
        report.notes.append(f"trace: {trace}")
    return report


def _judgements(
    scenario: Scenario, subject: Subject, device: torch.device, before: Before | None, sync_budget: int | None
) -> Iterator[Judgement]:
    """What becomes of a scenario in one fresh process after another, each having been through what was `before`."""
    subjects, seed = [subject], 0
    if before is not None:
        subjects = [subject if spec == subject.spec else load(spec, sync_budget) for spec in before.specs]
        seed = before.seed
    setup = Setup(subjects, device, for_subjects(subjects, device.type == SIMULATED), seed)
    spans = before.spans if before is not None else ()
    with Crew(setup, 0, Limits()) as crew:
        while True:
            yield crew.judgement(follow, spans, scenario, subjects.index(subject), -1)


def finding_in(file: Path, spec: str | None, device: torch.device) -> Finding:
    """The finding that a file holds, or that its scenario shows on the subject of this spec.

    Raises:
        ScenarioError: the file is damaged or of another version.
        SubjectError: the file holds a bare scenario and no subject is named, or the subject holds on it.
        OSError: the file can't be read.
    """
    kept = _kept_in(file)
    if isinstance(kept, Finding) and spec is None:
        return kept
    report = _replayed(kept, file, [spec] if spec else [], device, lambda event: None)
    if not report.findings:
        raise SubjectError(f"{', '.join(report.subjects)} is not wrong on {file}, so there is nothing to export")
    return replace(report.findings[0], file=str(file))


def compared(was: Finding, now: Sequence[Finding]) -> str:
    """Whether a finding reproduces, reproduces differently, or is gone; with a colon and what is seen."""
    if not now:
        return f"gone: {was.contract} is no longer broken"
    if any(found.contract == was.contract and found.message == was.message for found in now):
        return f"reproduces: {was.contract} is broken as before"
    if was.verdict == "unstable" and any(f" {found.contract}: " in was.message for found in now):
        return f"reproduces: {now[0].contract} is broken as before"
    told = "; ".join(f"{found.contract}: {found.message}" for found in now)
    return f"reproduces differently: it was {was.contract}: {was.message}; now it is {told}"
