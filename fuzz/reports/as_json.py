"""JSON, for programs; its schema is generated from the classes here and stands in docs/report.schema.json."""

import json
from typing import Any, Final, Literal

import msgspec

from fuzz.blame import Blame
from fuzz.campaign import Report
from fuzz.findings import Before
from fuzz.traced import TracedStep
from oracle.scenario import Scenario

VERSION: Final = 1


class FindingForm(msgspec.Struct, forbid_unknown_fields=True):
    """One contract that one subject breaks, on the smallest scenario known."""

    contract: str
    subject: str
    spec: str
    verdict: Literal["violates", "crashes", "hangs", "unstable"]
    pooling_type: str
    step: int | None
    message: str
    blame: Blame | None
    trace: tuple[TracedStep, ...]
    """What an engine did, step by step."""
    place: str
    count: int
    file: str | None
    before: Before | None
    known: str
    url: str
    scenario: Scenario


class ReportForm(msgspec.Struct, forbid_unknown_fields=True):
    """How a run ended."""

    version: Literal[1]
    verdict: Literal["holds", "violates", "inconclusive", "skipped", "error"]
    subjects: list[str]
    seed: int | None
    scenarios: int
    comparisons: int
    findings: list[FindingForm]
    elapsed_s: float
    mix: dict[str, int]
    doubts: list[str]
    notes: list[str]
    error: str


def to_builtins(report: Report) -> dict[str, Any]:
    """The report as plain data; `ReportForm` says what is in it."""
    return {
        "version": VERSION,
        "verdict": report.verdict,
        "subjects": report.subjects,
        "seed": report.seed,
        "scenarios": report.scenarios,
        "comparisons": report.comparisons,
        "findings": [finding.to_builtins() for finding in report.findings],
        "elapsed_s": round(report.elapsed_s, 3),
        "mix": dict(report.mix),
        "doubts": report.doubts,
        "notes": report.notes,
        "error": report.error,
    }


def as_json(report: Report) -> str:
    """The report as a JSON document."""
    return json.dumps(to_builtins(report), indent=1) + "\n"


def schema() -> str:
    """The JSON schema of a report."""
    return json.dumps(msgspec.json.schema(ReportForm), indent=1) + "\n"
