"""The findings that are kept: listed, run again, cleared of what is mended, made into fixed scenarios."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from fuzz.cause import fingerprint
from fuzz.findings import Finding, read, write_atomically
from fuzz.ledger import VERSION as LEDGER_VERSION
from fuzz.ledger import Kind
from fuzz.replay import compared, replay
from impl.config import SubjectError
from impl.loading import load
from oracle.scenario import Scenario, ScenarioError, dump_json, dumps, to_builtins


class State(Enum):
    """What has become of a kept finding."""

    REPRODUCES = "reproduces"
    DIFFERS = "reproduces differently"
    GONE = "gone"
    COULD_NOT_RUN = "could not run"


@dataclass(frozen=True)
class Kept:
    """A file of the corpus: its finding, or why it can't be read."""

    path: Path
    finding: Finding | None
    problem: str = ""


@dataclass(frozen=True)
class Rerun:
    """A kept finding after another run, with a sentence that says more."""

    kept: Kept
    state: State
    told: str


def entries(directory: Path) -> list[Kept]:
    """Every file of a corpus, by name; a corpus that isn't there yet is empty."""
    return [_entry(path) for path in sorted(directory.glob("*.json"))]


def _entry(path: Path) -> Kept:
    try:
        finding = read(path)[1]
    except (ScenarioError, OSError) as error:
        return Kept(path, None, str(error))
    return Kept(path, finding, "" if finding else "it holds a scenario, not a finding")


def rerun(directory: Path, device: torch.device) -> Iterator[Rerun]:
    """Run each finding again on the subject it names."""
    for kept in entries(directory):
        if kept.finding is None:
            yield Rerun(kept, State.COULD_NOT_RUN, kept.problem)
            continue
        try:
            report = replay(kept.path, (), device, lambda event: None)
        except (SubjectError, ScenarioError, OSError) as error:
            yield Rerun(kept, State.COULD_NOT_RUN, str(error))
            continue
        if report.doubts:
            yield Rerun(kept, State.COULD_NOT_RUN, "; ".join(report.doubts))
            continue
        told = compared(kept.finding, report.findings)
        yield Rerun(kept, State(told.partition(":")[0]), told)


def prune(directory: Path, device: torch.device) -> Iterator[Rerun]:
    """Run each finding again and remove the file of each that is gone."""
    for result in rerun(directory, device):
        if result.state is State.GONE:
            result.kept.path.unlink()
        yield result


def promote(file: Path, directory: Path, name: str | None = None) -> Path:
    """Make a finding's scenario one that `poolproof check` runs on every subject from now on.

    Returns:
        Where it stands; the finding stays where it is.

    Raises:
        ScenarioError: the file is damaged.
        OSError: it can't be read, or the scenario can't be written.
    """
    scenario, finding = read(file)
    what = name or (finding.contract if finding else file.stem)
    stem = _stem(what)
    path = directory / (f"{stem}.json" if name else f"{stem}-{fingerprint(scenario)}.json")
    write_atomically(path, dumps(scenario))
    return path


def accept(file: Path, directory: Path, name: str, why: str, url: str = "", kind: Kind = "fault") -> Path:
    """Enter a finding into a ledger: it is told as known from then on, and as an error once it is gone.

    Returns:
        Where the entry stands; the finding stays where it is.

    Raises:
        ScenarioError: the file is damaged, or holds no finding.
        SubjectError: its subject can't be had.
        OSError: it can't be read, or the entry can't be written.
    """
    scenario, finding = read(file)
    if finding is None:
        raise ScenarioError(f"{file} holds a scenario, not a finding")
    subject = load(finding.spec)
    entry: dict[str, Any] = {
        "version": LEDGER_VERSION, "title": finding.message, "kind": kind, "product": subject.product,
        "releases": f"=={subject.version}" if subject.version else "", "url": url, "story": why or finding.message,
        "witnesses": [{"contract": finding.contract, "scenario": to_builtins(scenario)}],
    }  # fmt: skip
    path = directory / f"{_stem(name or file.stem)}.json"
    write_atomically(path, dump_json({key: value for key, value in entry.items() if value != ""}))
    return path


def unknown(directory: Path) -> list[Path]:
    """The files of a corpus whose findings no ledger had when they were found.

    Raises:
        ScenarioError: one of the files is damaged, or holds no finding.
    """
    kept = entries(directory)
    for entry in kept:
        if entry.problem:
            raise ScenarioError(f"{entry.path}: {entry.problem}")
    return [entry.path for entry in kept if entry.finding and not entry.finding.known]


def _stem(what: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")


def promoted(directory: Path) -> Iterator[Scenario]:
    """The scenarios that were promoted.

    Raises:
        ScenarioError: one of the files is damaged; the message names it.
    """
    for path in sorted(directory.glob("*.json")):
        try:
            yield read(path)[0]
        except ScenarioError as error:
            raise ScenarioError(f"{path}: {error}") from None
