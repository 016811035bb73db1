"""A saved finding or scenario, run again."""

from collections.abc import Sequence
from pathlib import Path

import torch

from fuzz.campaign import Budget, Campaign, Listener, Report, Started
from fuzz.findings import read
from fuzz.start import runs_on
from fuzz.world import supports
from impl.config import SubjectError
from impl.loading import load


def replay(
    file: Path, specs: Sequence[str], device: torch.device, listener: Listener, sync_budget: int | None = None
) -> Report:
    """Run what the file holds on the subjects, or on the one that its finding names.

    A `sync_budget` takes the place of what the subjects declare.

    Raises:
        ScenarioError: the file is damaged or of another version.
        SubjectError: no subject is named, or it doesn't serve the scenario.
        OSError: the file can't be read.
    """
    scenario, finding = read(file)
    if not specs and finding is None:
        raise SubjectError(f"{file} holds a scenario, not a finding: say with --subject on what to run it")
    specs = list(specs) or [str(finding and finding.spec)]
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
        report.notes.append(_compared(finding.contract, [found.contract for found in report.findings]))
    return report


def _compared(was: str, now: Sequence[str]) -> str:
    if not now:
        return f"gone: {was} is no longer broken"
    if was in now:
        return f"reproduces: {was} is broken as before"
    return f"reproduces differently: {was} was broken, now {', '.join(now)}"
