"""Findings: violations with one cause, told once, kept as files that can be replayed."""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import torch

from fuzz.shrink import shrink
from fuzz.start import run
from fuzz.verdict import Judgement
from fuzz.world import supports
from impl.config import Subject
from oracle.scenario import Scenario, check_version, convert, dump_json, from_builtins, parse_json

FILE_VERSION: Final = 1


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

    @property
    def key(self) -> tuple[str, str, str]:
        """Findings of one key are taken to have one cause."""
        return self.subject, self.contract, self.pooling_type

    @property
    def name(self) -> str:
        """A file name: subject, contract and a fingerprint of the scenario."""
        stem = re.sub(r"[^a-z0-9]+", "-", f"{self.subject}-{self.contract}".lower()).strip("-")
        digest = hashlib.sha256(msgspec.json.encode(self.scenario)).hexdigest()[:8]
        return f"{stem}-{digest}.json"

    def to_builtins(self) -> dict[str, Any]:
        """What a finding file and `--json` say of it."""
        return {
            "contract": self.contract,
            "subject": self.subject,
            "spec": self.spec,
            "verdict": self.verdict,
            "message": self.message,
            "place": self.place,
            "count": self.count,
            "file": self.file,
            "scenario": {"version": self.scenario.version, **msgspec.to_builtins(self.scenario)},
        }


def from_failure(
    scenario: Scenario, subject: Subject, judgement: Judgement, device: torch.device, max_shrink_s: float
) -> Finding:
    """Shrink a failing scenario and tell what is wrong on the small one."""

    def still_fails(candidate: Scenario) -> bool:
        if not supports(subject, candidate):
            return False
        seen = run(candidate, subject, device)
        return (seen.contract, seen.verdict) == (judgement.contract, judgement.verdict)

    smallest = shrink(scenario, still_fails, max_shrink_s).scenario
    told = run(smallest, subject, device)
    if told.contract != judgement.contract:
        # It does not fail twice in the same way: keep what was seen, on the scenario it was seen on.
        smallest, told = scenario, judgement
    return Finding(
        subject=subject.name,
        contract=told.contract,
        verdict=told.verdict.value,
        pooling_type=told.pooling_type,
        message=told.message if told.step is None else f"step {told.step}: {told.message}",
        scenario=smallest,
        place=told.place,
        spec=subject.spec,
    )


class Findings:
    """What was found so far, each cause once; kept on disk as it comes, if there is a directory."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.error = ""
        """Why a finding could not be kept, if so."""
        self._by_key: dict[tuple[str, str, str], Finding] = {}
        self._aliases: dict[tuple[str, str, str], tuple[str, str, str]] = {}

    def __iter__(self) -> Any:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, subject: Subject, judgement: Judgement, make: Callable[[], Finding]) -> Finding | None:
        """Count a failure; the finding if it is a new one, made (shrunk) only then."""
        seen = (subject.name, judgement.contract, judgement.pooling_type)
        if seen not in self._aliases:
            finding = make()
            # The small scenario may show the fault in a plainer place, where it is known already.
            self._aliases[seen] = finding.key
            self._aliases.setdefault(finding.key, finding.key)
            if finding.key not in self._by_key:
                self._by_key[finding.key] = self._kept(finding)
                return self._by_key[finding.key]
        key = self._aliases[seen]
        self._by_key[key] = replace(self._by_key[key], count=self._by_key[key].count + 1)
        return None

    def _kept(self, finding: Finding) -> Finding:
        if self.directory is None:
            return finding
        path = self.directory / finding.name
        kept = replace(finding, file=str(path))
        try:
            write_atomically(path, dump_json({"version": FILE_VERSION, "kind": "finding", **kept.to_builtins()}))
        except OSError as error:
            # What was found is told all the same.
            self.error = f"a finding can't be written: {error}"
            return finding
        return kept


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: the directory can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
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


def read(path: Path) -> tuple[Scenario, Finding | None]:
    """Read a finding, or a bare scenario, from a file.

    Raises:
        ScenarioError: damaged, of another version, or with a field that can't be.
        OSError: the file can't be read.
    """
    data = parse_json(path.read_bytes())
    if not (isinstance(data, dict) and data.get("kind") == "finding"):
        return from_builtins(data), None
    check_version(data, FILE_VERSION, "the finding")
    kept = convert(data, _FindingFile)
    scenario = from_builtins(kept.scenario)
    return scenario, Finding(
        subject=kept.subject,
        contract=kept.contract,
        verdict=kept.verdict,
        pooling_type="",
        message=kept.message,
        scenario=scenario,
        place=kept.place,
        spec=kept.spec,
        count=kept.count,
        file=str(path),
    )
