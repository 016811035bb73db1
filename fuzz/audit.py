"""What poolers cost a device: waits, copies, kernels and bytes, by kind of step and batch size.

It measures and hands out plain data; `fuzz.audit_table` shows it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from fuzz.ladder import Ladder, ladders
from fuzz.runner import Run
from fuzz.verdict import Verdict
from fuzz.world import World, supports
from impl.config import Subject, SubjectError, SyncBudget
from oracle.contracts import LADDER
from oracle.device.backend import NoDeviceError
from oracle.device.record import Record

FIGURES: Final = ("reads", "uploads", "waits", "kernels", "moved_bytes", "device_bytes")
_NO_LIMIT: Final = SyncBudget(per_call=1 << 30, per_request=1 << 30)


@dataclass(frozen=True)
class Row:
    """What one kind of step costs one subject: each figure by batch size, in the order of `LADDER`."""

    subject: str
    load: str
    figures: dict[str, list[int]]
    places: Counter[str] = field(default_factory=Counter)
    """How often host and device met in the largest batch, by operation and place."""
    failure: str = ""
    """What the subject did wrong, if it did: then there are no figures."""

    def per_request(self, figure: str) -> float:
        """How much a figure grows with each request."""
        return float(np.polyfit(LADDER, self.figures[figure], 1)[0])

    def to_builtins(self) -> dict[str, Any]:
        """What `--json` says of it."""
        told: dict[str, Any] = {"subject": self.subject, "load": self.load, "batch_sizes": list(LADDER)}
        if self.failure:
            return {**told, "failure": self.failure}
        growth = {figure: round(self.per_request(figure), 3) for figure in self.figures}
        return {**told, **self.figures, "per_request": growth, "places": dict(self.places)}


def measure(subjects: Sequence[Subject], device: torch.device) -> list[Row]:
    """Measure each subject on each kind of step that it serves.

    Raises:
        SubjectError: a subject can't be made as it says, or serves no kind of step that is measured here.
        NoDeviceError: on a CPU there is nothing to measure.
    """
    if device.type == "cpu":
        raise NoDeviceError("on a CPU there is nothing to audit; leave --device out, or say --device sim")
    rows: list[Row] = []
    with torch.inference_mode():
        for subject in subjects:
            kinds = [ladder for ladder in ladders(subject) if supports(subject, ladder.scenario)]
            if not kinds:
                raise SubjectError(f"{subject.name} serves neither single methods nor whole poolers: nothing to audit")
            rows += [row for ladder in kinds for row in _climb(subject, ladder, device)]
    return rows


def _climb(subject: Subject, ladder: Ladder, device: torch.device) -> list[Row]:
    names = [f"{ladder.name}, {part}" if part else ladder.name for part in ladder.parts]
    if device.type == "cuda":
        # The first run pays for what is set up once.
        Run(World(ladder.scenario, device), subject.held_to(_NO_LIMIT)).all_steps()
    run = Run(World(ladder.scenario, device), subject.held_to(_NO_LIMIT))
    run.profiles = True
    judgement = run.all_steps()
    if judgement.verdict is not Verdict.HOLDS:
        told = f"{judgement.verdict.value}: {judgement.contract}: {judgement.message}"
        return [Row(subject.name, name, {}, failure=told) for name in names]
    return [_row(subject.name, name, run.waits.records[place :: len(ladder.parts)]) for place, name in enumerate(names)]


def _row(subject: str, load: str, records: Sequence[Record]) -> Row:
    figures = {
        "reads": [record.reads for record in records],
        "uploads": [record.uploads for record in records],
        "waits": [len(record.waiting) for record in records],
        "kernels": [record.kernels for record in records],
        "moved_bytes": [record.moved_bytes for record in records],
        "device_bytes": [record.device_bytes for record in records],
    }
    return Row(subject, load, figures, records[-1].places(waiting=False))
