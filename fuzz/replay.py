"""A saved finding, scenario or trace, run again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuzz import trace as traces
from fuzz.campaign import Budget, Campaign, Listener, Report, Started
from fuzz.findings import Finding, read
from fuzz.start import runs_on
from fuzz.world import supports
from impl.config import SubjectError
from impl.loading import load


def replay(
    file: Path,
    specs: Sequence[str],
    device: torch.device,
    listener: Listener,
    sync_budget: int | None = None,
    trace: Path | None = None,
) -> Report:
    """Run what the file holds, a finding, a scenario or a trace, on the subjects, or on the one that it names.

    A `sync_budget` takes the place of what the subjects declare. What an engine does is written to `trace`.

    Raises:
        ScenarioError: the file is damaged or of another version.
        SubjectError: no subject is named, or it doesn't serve the scenario.
        OSError: the file can't be read, or the trace not be written.
    """
    kept = traces.read(file)
    scenario, finding = (kept.scenario, None) if kept else read(file)
    named = kept or finding
    if not specs and named is None:
        raise SubjectError(f"{file} holds a scenario, not a finding: say with --subject on what to run it")
    specs = list(specs) or [str(named and named.spec)]
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
    with torch.inference_mode():
        campaign.judge(scenario)
    report = campaign.finish()
    if finding is not None:
        report.notes.append(compared(finding, report.findings))
    if kept is not None or trace is not None:
        with torch.inference_mode():
            now = traces.traced(scenario, subjects[0], device)
        if kept is not None:
            report.notes.append(traces.compared(kept, now))
        if trace is not None:
            traces.write(trace, now)
            report.notes.append(f"trace: {trace}")
    return report


def finding_in(file: Path, spec: str | None, device: torch.device) -> Finding:
    """The finding that a file holds, or that its scenario shows on the subject of this spec.

    Raises:
        ScenarioError: the file is damaged or of another version.
        SubjectError: the file holds a bare scenario and no subject is named, or the subject holds on it.
        OSError: the file can't be read.
    """
    finding = read(file)[1]
    if finding is not None and spec is None:
        return finding
    report = replay(file, [spec] if spec else [], device, lambda event: None)
    if not report.findings:
        raise SubjectError(f"{', '.join(report.subjects)} is not wrong on {file}, so there is nothing to export")
    return replace(report.findings[0], file=str(file))


def compared(was: Finding, now: Sequence[Finding]) -> str:
    """Whether a finding reproduces, reproduces differently, or is gone; with a colon and what is seen."""
    if not now:
        return f"gone: {was.contract} is no longer broken"
    if any(found.contract == was.contract and found.message == was.message for found in now):
        return f"reproduces: {was.contract} is broken as before"
    told = "; ".join(f"{found.contract}: {found.message}" for found in now)
    return f"reproduces differently: it was {was.contract}: {was.message}; now it is {told}"
