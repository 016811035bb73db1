"""Findings: violations with one cause, told once, kept as files that can be replayed."""

import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import torch

from fuzz.blame import Blame
from fuzz.cause import Cause, cause, fingerprint
from fuzz.ledger import Recalled
from fuzz.shrink import shrink
from fuzz.start import run
from fuzz.traced import TracedStep
from fuzz.verdict import Judgement, Verdict
from fuzz.world import supports
from impl.config import Subject
from impl.vllm.fetch import cache
from oracle.scenario import Scenario, check_version, convert, dump_json, from_builtins, parse_json, to_builtins

FILE_VERSION: Final = 1
NOT_SERVED: Final = Judgement(Verdict.HOLDS, 0)
"""What becomes of a scenario that asks a subject for more than it serves."""
Span = tuple[int, int]
"""Scenarios of a campaign: the first, and the one after the last."""
MAX_ALIKE: Final = 5
"""Findings of one subject, symptom and pooling type; beyond that, failures are counted with the first of them."""


class ExportError(ValueError):
    """A finding that can't be put into the form asked for; the message says why."""


@dataclass(frozen=True)
class Before:
    """What a process had been through when a scenario failed in it: spans of a campaign's scenarios, in order.

    They are drawn anew by the seed, for these subjects, by the same version of poolproof.
    """

    seed: int
    specs: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """How many scenarios."""
        return sum(stop - first for first, stop in self.spans)


@dataclass(frozen=True)
class Finding:
    """One contract broken by one subject, with the smallest scenario known.

    `count` says how many scenarios showed it; `file` where it is kept, if anywhere.
    """

    subject: str
    contract: str
    verdict: str
    pooling_type: str
    message: str
    scenario: Scenario
    place: str = ""
    spec: str = ""
    """How to name the subject on the command line."""
    count: int = 1
    file: str | None = None
    step: int | None = None
    """The step of the scenario at which it falls."""
    blame: Blame | None = None
    """Whose rows are wrong, if rows are."""
    trace: tuple[TracedStep, ...] = ()
    """What an engine did, step by step, up to where it fell; unknown if it took its process with it."""
    before: Before | None = None
    """What it takes to have been run in the same process before, if it does not fail alone."""
    known: str = ""
    """What the ledger calls it, if it has it."""
    url: str = ""
    """Where it is published, if the ledger says so."""

    @property
    def size(self) -> tuple[int, ...]:
        """The smaller, the easier to take in."""
        steps = self.scenario.steps
        tokens = sum(request.prompt_len for request in self.scenario.requests)
        return len(self.scenario.requests), len(steps), tokens, self.scenario.options.hidden_size

    @property
    def name(self) -> str:
        """A file name: subject, contract and a fingerprint of the scenario."""
        stem = re.sub(r"[^a-z0-9]+", "-", f"{self.subject}-{self.contract}".lower()).strip("-")
        return f"{stem}-{fingerprint(self.scenario)}.json"

    def to_builtins(self) -> dict[str, Any]:
        """What a finding file and `--json` say of it."""
        return {
            "contract": self.contract,
            "subject": self.subject,
            "spec": self.spec,
            "verdict": self.verdict,
            "pooling_type": self.pooling_type,
            "step": self.step,
            "message": self.message,
            "blame": None if self.blame is None else msgspec.to_builtins(self.blame),
            "place": self.place,
            "count": self.count,
            "file": self.file,
            "trace": msgspec.to_builtins(self.trace),
            "before": None if self.before is None else msgspec.to_builtins(self.before),
            "known": self.known,
            "url": self.url,
            "scenario": to_builtins(self.scenario),
        }

    def to_file(self) -> dict[str, Any]:
        """What a finding file says; `finding_from` reads it."""
        return {"version": FILE_VERSION, "kind": "finding", **self.to_builtins()}


@dataclass(frozen=True)
class Failure:
    """A judgement that speaks against a subject, with the scenario on which it was passed."""

    scenario: Scenario
    subject: str
    spec: str
    judgement: Judgement

    @property
    def cause(self) -> Cause:
        """Why it fails, as far as can be known."""
        return cause(self.subject, self.scenario, self.judgement)

    def is_shown_by(self, scenario: Scenario, judgement: Judgement) -> bool:
        """Whether another scenario fails in the same way, whatever it takes."""
        if judgement.verdict is not self.judgement.verdict:
            return False
        mine = self.cause
        return replace(cause(self.subject, scenario, judgement), needs=mine.needs) == mine

    def finding(self) -> Finding:
        """The failure as it is told."""
        seen = self.judgement
        return Finding(
            subject=self.subject,
            contract=seen.contract,
            verdict=seen.verdict.value,
            pooling_type=seen.pooling_type,
            message=seen.message if seen.step is None else f"step {seen.step}: {seen.message}",
            scenario=self.scenario,
            place=relative(seen.place),
            spec=self.spec,
            step=seen.step,
            blame=seen.blame,
            trace=seen.trace,
        )

    def told(self) -> tuple[Finding, Cause]:
        """The failure as it is told, and why it is."""
        return self.finding(), self.cause


def shrunk(
    failure: Failure,
    judge: Callable[[Scenario], Judgement],
    max_time_s: float,
    tell: Callable[[Scenario], None] = lambda scenario: None,
) -> Scenario:
    """The smallest scenario that fails in the same way; `judge` runs one, `tell` hears of each that does."""

    def still_fails(candidate: Scenario) -> bool:
        if not failure.is_shown_by(candidate, judge(candidate)):
            return False
        tell(candidate)
        return True

    return shrink(failure.scenario, still_fails, max_time_s).scenario


def from_failure(
    scenario: Scenario, subject: Subject, judgement: Judgement, device: torch.device, max_shrink_s: float
) -> tuple[Finding, Cause]:
    """Shrink a failing scenario and tell what is wrong on the small one, and what it takes."""
    failure = Failure(scenario, subject.name, subject.spec, judgement)

    def judge(candidate: Scenario) -> Judgement:
        return run(candidate, subject, device) if supports(subject, candidate) else NOT_SERVED

    smallest = shrunk(failure, judge, max_shrink_s)
    told = judge(smallest)
    if failure.is_shown_by(smallest, told):
        failure = replace(failure, scenario=smallest, judgement=told)
    # Otherwise it does not fail twice in the same way: keep what was seen, on the scenario it was seen on.
    return failure.told()


def relative(place: str) -> str:
    """File and line, the file relative to the working directory, the installed packages or a fetched release."""
    path, colon, line = place.rpartition(":")
    if Path(path).is_relative_to(cache()):
        return f"{Path(*Path(path).relative_to(cache()).parts[1:])}{colon}{line}"
    for root in (Path.cwd(), Path(sysconfig.get_path("purelib"))):
        if Path(path).is_relative_to(root):
            return f"{Path(path).relative_to(root)}{colon}{line}"
    return place


class Findings:
    """What was found so far, each cause once; kept on disk as it comes, if there is a directory."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.error = ""
        """Why a finding could not be kept, if so."""
        self.recalled: list[Recalled] = []
        """What the ledger knows of the subjects."""
        self._known: list[tuple[Cause, Finding]] = []

    def __iter__(self) -> Iterator[Finding]:
        """The findings, subject by subject, the smallest first."""
        subjects = list(dict.fromkeys(finding.subject for _, finding in self._known))
        return iter(
            sorted((finding for _, finding in self._known), key=lambda own: (subjects.index(own.subject), own.size))
        )

    def __len__(self) -> int:
        return len(self._known)

    @property
    def known(self) -> list[tuple[Cause, Finding]]:
        """What a later run needs to go on from here."""
        return list(self._known)

    def restore(self, known: Sequence[tuple[Cause, Finding]]) -> None:
        """Go on from what an earlier run had found, keeping it here too."""
        self._known = [(cause, self._kept(finding)) for cause, finding in known]

    def add(self, seen: Cause, make: Callable[[], tuple[Finding, Cause]]) -> Finding | None:
        """Count a failure; the finding if it is a new one, made (shrunk) only then."""
        if self._count(seen):
            return None
        finding, made = make()
        if self._count(made):
            return None
        # What is unstable may look like anything, so it takes the place of nothing.
        explains = finding.verdict != Verdict.UNSTABLE.value
        explained = [known for known in self._known if explains and made.explains(known[0])]
        for known in explained:
            self._known.remove(known)
            self._forget(known[1])
        finding = replace(self._recognised(made, finding), count=1 + sum(known.count for _, known in explained))
        self._known.append((made, self._kept(finding)))
        return self._known[-1][1]

    def finish(self) -> None:
        """Keep how often each was seen."""
        self._known = [
            (known, self._kept(finding) if finding.file and finding.count > 1 else finding)
            for known, finding in self._known
        ]

    def _count(self, seen: Cause) -> bool:
        """Count a failure with the first finding that explains it, if one does."""
        alike = [place for place, (known, _) in enumerate(self._known) if _same_symptom(known, seen)]
        explaining = [place for place, (known, _) in enumerate(self._known) if known.explains(seen)]
        if not explaining and len(alike) < MAX_ALIKE:
            return False
        place = (explaining or alike)[0]
        known, finding = self._known[place]
        self._known[place] = known, replace(finding, count=finding.count + 1)
        return True

    def _recognised(self, own: Cause, finding: Finding) -> Finding:
        for recalled in self.recalled:
            if recalled.explains(own, finding.message):
                return replace(finding, known=recalled.known.name, url=recalled.known.url)
        return finding

    def _forget(self, finding: Finding) -> None:
        """Drop the file of a finding that another one explains."""
        if finding.file is not None:
            Path(finding.file).unlink(missing_ok=True)

    def _kept(self, finding: Finding) -> Finding:
        if self.directory is None:
            return finding
        path = self.directory / finding.name
        kept = replace(finding, file=str(path))
        try:
            write_atomically(path, dump_json(kept.to_file()))
        except OSError as error:
            # What was found is told all the same.
            self.error = f"a finding can't be written: {error}"
            return finding
        return kept


def _same_symptom(one: Cause, other: Cause) -> bool:
    return (one.subject, one.symptom, one.pooling_type) == (other.subject, other.symptom, other.pooling_type)


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: the directory can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class _FindingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kind: Literal["finding"]
    contract: str
    subject: str
    spec: str
    verdict: str
    message: str
    place: str
    count: Annotated[int, msgspec.Meta(ge=1)]
    file: str | None
    scenario: dict[str, Any]
    pooling_type: str = ""
    step: int | None = None
    blame: Blame | None = None
    trace: tuple[TracedStep, ...] = ()
    before: Before | None = None
    known: str = ""
    url: str = ""


def read(path: Path) -> tuple[Scenario, Finding | None]:
    """Read a finding, or a bare scenario, from a file.

    Raises:
        ScenarioError: damaged, of another version, or with a field that can't be.
        OSError: the file can't be read.
    """
    data = parse_json(path.read_bytes())
    if not (isinstance(data, dict) and data.get("kind") == "finding"):
        return from_builtins(data), None
    found = finding_from(data, str(path))
    return found.scenario, found


def finding_from(data: Any, file: str | None) -> Finding:
    """Read a finding from decoded JSON, kept in `file`.

    Raises:
        ScenarioError: damaged, of another version, or with a field that can't be.
    """
    check_version(data, FILE_VERSION, "the finding")
    kept = convert(data, _FindingFile)
    return Finding(
        subject=kept.subject,
        contract=kept.contract,
        verdict=kept.verdict,
        pooling_type=kept.pooling_type,
        message=kept.message,
        scenario=from_builtins(kept.scenario),
        place=kept.place,
        spec=kept.spec,
        count=kept.count,
        file=file,
        step=kept.step,
        blame=kept.blame,
        trace=kept.trace,
        before=kept.before,
        known=kept.known,
        url=kept.url,
    )
