"""What an engine did step by step, as a file that can be read, compared and run again.

The same traffic on the same engine gives the same file, byte for byte.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import torch

from fuzz.engine import EngineRun
from fuzz.findings import write_atomically
from fuzz.start import start
from fuzz.world import World
from impl.config import Subject, SubjectError
from impl.engine import EngineStep
from oracle.scenario import (
    Scenario,
    ScenarioError,
    check_version,
    convert,
    dump_json,
    from_builtins,
    parse_json,
    to_builtins,
)

VERSION: Final = 1


class TracedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of an engine."""

    batch: tuple[tuple[str, int, int], ...] = ()
    """In batch order: the request, how many of its tokens were computed before, how many were scheduled."""
    preempted: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    """Who was answered."""


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


def traced(scenario: Scenario, subject: Subject, device: torch.device) -> Trace:
    """Run a scenario on an engine and keep what it did.

    Raises:
        SubjectError: the scenario is not for an engine.
    """
    run = start(World(scenario, device), subject)
    if not isinstance(run, EngineRun):
        raise SubjectError("only an engine has a trace; this scenario has its own steps")
    judgement = run.all_steps()
    steps = tuple(_traced(step) for step in run.trace)
    return Trace(subject.spec, scenario, judgement.verdict.value, judgement.message, steps)


def _traced(step: EngineStep) -> TracedStep:
    batch = tuple((span.name, span.start, span.count) for span in step.spans)
    return TracedStep(batch, step.preempted, step.resumed, tuple(step.outputs))


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


def read(path: Path) -> Trace | None:
    """The trace that a file holds; None if it holds something else.

    Raises:
        ScenarioError: damaged, of another version, or with a field that can't be.
        OSError: the file can't be read.
    """
    data = parse_json(path.read_bytes())
    if not (isinstance(data, dict) and data.get("kind") == "trace"):
        return None
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
