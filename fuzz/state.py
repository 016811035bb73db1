"""Where a campaign stands, kept beside its findings, so that another run can go on from there.

The file is replaced as a whole, so whenever a run is killed, it says where the campaign stood a moment ago.
"""

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import torch

from fuzz.campaign import Campaign
from fuzz.cause import Cause
from fuzz.findings import finding_from, write_atomically
from fuzz.together import note
from impl.config import SubjectError
from oracle.scenario import ScenarioError, check_version, convert, parse_json

STATE_VERSION: Final = 2
FILE_NAME: Final = "campaign.state"
LOCK_NAME: Final = "campaign.lock"
KEEP_EVERY_S: Final = 1.0


class _Known(msgspec.Struct, frozen=True):
    cause: Cause
    finding: dict[str, Any]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A campaign between two scenarios."""

    version: int
    kind: Literal["campaign"]
    seed: int
    specs: tuple[str, ...]
    device: str
    next: int
    """The first scenario that is not in it."""
    scenarios: int
    comparisons: int
    elapsed_s: float
    mix: dict[str, int]
    together: dict[str, list[str]]
    verdicts: dict[str, int]
    doubts: list[str]
    known: list[_Known]
    pid: int
    """The process that wrote it."""

    def check(self, specs: Sequence[str], device: torch.device, seed: int | None) -> None:
        """See that a run may go on from here.

        Raises:
            ScenarioError: it is about other subjects, another device or another seed.
        """
        kept = (", ".join(self.specs), self.device, str(self.seed))
        asked = (", ".join(specs), str(device), str(self.seed if seed is None else seed))
        for what, was, now in zip(("on", "on device", "with seed"), kept, asked, strict=True):
            if was != now:
                raise ScenarioError(f"the campaign to resume was {what} {was}, but this run is {what} {now}")

    def restore(self, campaign: Campaign) -> None:
        """Have a campaign, which has judged nothing yet, stand there."""
        report = campaign.report
        report.scenarios, report.comparisons = self.scenarios, self.comparisons
        report.mix, report.verdicts = Counter(self.mix), Counter(self.verdicts)
        note(report.together, self.together)
        for doubt in self.doubts:
            campaign.doubt(doubt)
        campaign.started_s -= self.elapsed_s
        campaign.findings.restore([(own.cause, finding_from(own.finding, None)) for own in self.known])
        report.findings = list(campaign.findings)
        if campaign.findings.directory is not None:
            # What the run that was killed was about to replace.
            for part in campaign.findings.directory.glob(f"*.{self.pid}.part"):
                part.unlink(missing_ok=True)


@contextmanager
def alone_in(directory: Path | None) -> Iterator[None]:
    """See that no other campaign keeps its state and findings in a directory meanwhile.

    The lock goes with this process, however that ends, and is not inherited by its workers.

    Raises:
        SubjectError: another campaign has the directory.
    """
    if directory is None:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK_NAME).open("w")
    except OSError:
        # Nothing can be kept here, by anybody; what is written first says so.
        yield
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SubjectError(
                f"another campaign that is under way keeps its findings in {directory}; give this one its own by --save"
            ) from None
        yield


class Keeper:
    """Keeps the state of a campaign, if it has a directory."""

    def __init__(self, campaign: Campaign, first: int) -> None:
        self.next = first
        self._campaign = campaign
        self._kept_s = 0.0
        self._num_findings = 0

    def keep_now_and_then(self) -> None:
        """Keep it if there is something new to lose, or some time has passed."""
        if len(self._campaign.findings) != self._num_findings or time.monotonic() - self._kept_s > KEEP_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write the file."""
        campaign, report = self._campaign, self._campaign.report
        directory = campaign.findings.directory
        if directory is None:
            return
        state = State(
            version=STATE_VERSION,
            kind="campaign",
            seed=report.seed or 0,
            specs=tuple(subject.spec for subject in campaign.subjects),
            device=str(campaign.device),
            next=self.next,
            scenarios=report.scenarios,
            comparisons=report.comparisons,
            elapsed_s=time.monotonic() - campaign.started_s,
            mix=dict(report.mix),
            together={name: sorted(beside) for name, beside in report.together.items()},
            verdicts=dict(report.verdicts),
            doubts=report.doubts,
            known=[_Known(cause, finding.to_file()) for cause, finding in campaign.findings.known],
            pid=os.getpid(),
        )
        try:
            write_atomically(directory / FILE_NAME, json.dumps(msgspec.to_builtins(state)))
        except OSError as error:
            campaign.findings.error = f"where the campaign stands can't be written: {error}"
        self._kept_s, self._num_findings = time.monotonic(), len(campaign.findings)


def kept_in(directory: Path) -> State:
    """Where the last campaign stands that kept its findings here.

    Raises:
        ScenarioError: there is none, or the file is damaged or of another version.
    """
    path = directory / FILE_NAME
    try:
        data = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise ScenarioError(f"there is no campaign to resume in {directory}") from None
    check_version(data, STATE_VERSION, "the campaign")
    return convert(data, State)
