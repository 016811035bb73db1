"""What an engine did step by step, as a file that can be read, compared and run again.

The same traffic on the same engine gives the same file, byte for byte.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from fuzz.findings import write_atomically
from fuzz.traced import TracedStep
from fuzz.verdict import Judgement
from impl.config import SubjectError
from oracle.scenario import Scenario, ScenarioError, check_version, convert, dump_json, from_builtins, to_builtins

VERSION: Final = 1


class Trace(msgspec.Struct, frozen=True):
    """What a scenario's traffic came to on an engine."""

    spec: str
    scenario: Scenario
    verdict: str
    message: str
    """Where it fell, in the last step: why."""
    steps: tuple[TracedStep, ...]


class _TraceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kind: Literal["trace"]
    spec: str
    scenario: dict[str, object]
    verdict: str
    message: str
    steps: tuple[TracedStep, ...]


def trace_of(scenario: Scenario, spec: str, judgement: Judgement) -> Trace:
    """What an engine did on a scenario, on which the judgement was passed.

    Raises:
        SubjectError: the scenario is not for an engine.
    """
    if scenario.traffic is None:
        raise SubjectError("only an engine has a trace; this scenario has its own steps")
    return Trace(spec, scenario, judgement.verdict.value, judgement.message, judgement.trace)


def dumps(trace: Trace) -> str:
    """The trace as readable JSON, a step a line."""
    told = {
        "version": VERSION,
        "kind": "trace",
        "spec": trace.spec,
        "verdict": trace.verdict,
        "message": trace.message,
        "steps": msgspec.to_builtins(trace.steps),
        "scenario": to_builtins(trace.scenario),
    }
    return dump_json(told)


def write(path: Path, trace: Trace) -> None:
    """Write a trace whole or not at all.

    Raises:
        OSError: the directory can't be written.
    """
    write_atomically(path, dumps(trace))


def trace_from(data: Any) -> Trace:
    """Read a trace from decoded JSON.

    Raises:
        ScenarioError: damaged, of another version, or with a field that can't be.
    """
    check_version(data, VERSION, "the trace")
    kept = convert(data, _TraceFile)
    scenario = from_builtins(kept.scenario)
    if scenario.traffic is None:
        raise ScenarioError("a trace is of an engine, but there is no traffic - at `$.scenario.traffic`")
    return Trace(kept.spec, scenario, kept.verdict, kept.message, kept.steps)


def compared(was: Trace, now: Trace) -> str:
    """Whether two traces are the same, or where they part."""
    for number, (before, after) in enumerate(zip(was.steps, now.steps, strict=False)):
        if before != after:
            return f"another trace: step {number} was {_told(before)}; now it is {_told(after)}"
    if len(was.steps) != len(now.steps):
        return f"another trace: it had {len(was.steps)} steps; now it has {len(now.steps)}"
    return f"the same trace: {len(now.steps)} steps"


def _told(step: TracedStep) -> str:
    parts = [", ".join(f"{name} {start}+{count}" for name, start, count in step.batch) or "nothing"]
    named: Sequence[tuple[str, tuple[str, ...]]] = (
        ("preempted", step.preempted), ("resumed", step.resumed), ("finished", step.finished),
    )  # fmt: skip
    return "; ".join(parts + [f"{what} {', '.join(names)}" for what, names in named if names])
