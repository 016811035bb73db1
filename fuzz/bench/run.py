"""Times subjects side by side on workloads, each first proved right; hands out plain data."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fuzz.bench.compare import Comparison, compare
from fuzz.bench.limits import limit
from fuzz.bench.measure import Times, interleave
from fuzz.bench.prepared import Stage, Timed, serves
from fuzz.bench.workloads import Workload, workloads
from impl.config import Subject, SubjectError

RESOLUTION: Final = 0.05
"""Rounds are added until a difference this large would be seen."""
_PATIENCE: Final = 6
"""How many times the rounds asked for are taken at most."""


@dataclass(frozen=True)
class Result:
    """A subject on a workload."""

    workload: Workload
    subject: str
    times_us: Times
    """One a round."""
    beside_base: Comparison | None
    """How long it takes beside the first subject; None for that one itself."""
    limit_us: float | None
    """The median of what can't be beaten, from the same rounds; None where no limit is stated."""

    @property
    def median_us(self) -> float:
        """The middle round."""
        return float(np.median(self.times_us))

    @property
    def times_limit(self) -> float | None:
        """How many times the limit it takes."""
        return None if self.limit_us is None else self.median_us / self.limit_us

    def to_builtins(self) -> dict[str, Any]:
        """What `--json` says of it."""
        first, third = np.quantile(self.times_us, (0.25, 0.75))
        told: dict[str, Any] = {
            "workload": self.workload.name, "about": self.workload.about, "subject": self.subject,
            "median_us": self.median_us, "first_quartile_us": float(first), "third_quartile_us": float(third),
            "limit_us": self.limit_us, "times_limit": self.times_limit,
        }  # fmt: skip
        beside = self.beside_base
        if beside is not None:
            told |= {
                "ratio": beside.ratio, "low": beside.low, "high": beside.high, "verdict": beside.verdict,
                "smallest_effect": beside.smallest_effect,
            }  # fmt: skip
        return told


def chosen(patterns: Sequence[str]) -> list[Workload]:
    """The workloads whose names fit one of the patterns, such as `all-short-*`.

    Raises:
        SubjectError: a pattern fits none.
    """
    known = workloads()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SubjectError(f"no workload is called {pattern!r}; there are {', '.join(known)}")
    return [each for name, each in known.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def bench(
    subjects: Sequence[Subject], workload: Workload, rounds: int, device: torch.device, seed: int = 0
) -> list[Result]:
    """Time each subject that serves a workload, and compare it with the first of them all.

    Returns:
        One result a subject; none at all if the first does not serve the workload.

    Raises:
        WrongError: a subject is wrong on it; then none is timed.
    """
    if not serves(subjects[0], workload):
        return []
    with torch.inference_mode():
        stage = Stage(workload, device)
        ready = [stage.prepare(subject) for subject in subjects if serves(subject, workload)]
        participants = [prepared.timed for prepared in ready]
        if workload.limit is not None:
            participants.append(limit(workload.limit, ready[0]))
        taken = _until_seen(participants, len(ready), rounds, device, seed)
    limit_us = float(np.median(taken.pop())) if workload.limit is not None else None
    return [
        Result(workload, prepared.timed.name, times, None if at == 0 else compare(taken[0], times), limit_us)
        for at, (prepared, times) in enumerate(zip(ready, taken, strict=True))
    ]


def _until_seen(
    participants: Sequence[Timed], subjects: int, rounds: int, device: torch.device, seed: int
) -> list[Times]:
    """Take rounds until an effect of `RESOLUTION` would be seen of each subject, or patience ends.

    When to stop depends on how the figures scatter, not on which way they point, so no verdict is favoured.
    """
    taken = interleave(participants, rounds, device, seed)
    for more in range(1, _PATIENCE):
        if all(compare(taken[0], times).smallest_effect <= RESOLUTION for times in taken[1:subjects]):
            break
        longer = interleave(participants, rounds, device, seed + more)
        taken = [np.concatenate(parts) for parts in zip(taken, longer, strict=True)]
    return taken


def machine(device: torch.device) -> str:
    """What the figures were taken on, in words."""
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"one thread of {_processor()}, {os.cpu_count()} cores"
    return f"{where}; {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in told if line.startswith("model name")), platform.machine())
