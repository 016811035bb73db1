"""A workload on a subject, proved right and ready to be timed.

The proof is the runner's own: every contract on that very input, and what is timed afterwards is the
same call again, on the same rows with the same pooling states.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fuzz.bench.workloads import Workload
from fuzz.start import start
from fuzz.verdict import Judgement, Verdict
from fuzz.world import World, as_called, supports
from impl.config import Level, PoolerConfig, PoolFn, Subject, SubjectError
from oracle.contracts import tensors_in
from oracle.rows import same_numbers


class WrongError(Exception):
    """A subject that is wrong on a workload, and is not timed."""

    def __init__(self, subject: Subject, workload: Workload, judgement: Judgement) -> None:
        super().__init__(
            f"{subject.name} is not timed on {workload.name}, for it breaks {judgement.contract or 'a check'}: "
            f"{judgement.message}"
        )
        self.judgement = judgement


@dataclass(frozen=True)
class Timed:
    """Something that can be called again and again."""

    name: str
    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    """Puts back what a call uses up; not timed. None: it uses up nothing."""


@dataclass
class Recorded:
    """A pooler's call, with all that it takes to make it again."""

    pool: PoolFn
    hidden_states: torch.Tensor
    metadata: Any
    rows: torch.Tensor
    """A copy, for the engine overwrites the buffer."""
    held: Sequence[dict[str, Any]]
    """What the pooling states held before the call."""

    def restore(self) -> None:
        """Let the pooling states hold what they held; tensors in them are not copied."""
        for state, held in zip(self.metadata.pooling_states, self.held, strict=True):
            for name, value in held.items():
                setattr(state, name, copy.copy(value))

    def uses_states(self) -> bool:
        """Whether the call takes rows of earlier steps out of the states, or leaves some in them."""
        held = any(tensors_in(state) for state in self.metadata.pooling_states)
        return held or not all(self.metadata.pooling_cursor.get_finished_mask())


@dataclass
class _Recorder:
    """A subject whose calls are kept."""

    subject: Subject
    calls: list[Recorded] = field(default_factory=list)

    def recording(self) -> Subject:
        return replace(self.subject, build=self._build)

    def _build(self, config: PoolerConfig, level: Level) -> PoolFn:
        pool = self.subject.build(config, level)

        def call(hidden_states: torch.Tensor, metadata: Any) -> Any:
            held = [
                {name: copy.copy(value) for name, value in vars(state).items()} for state in metadata.pooling_states
            ]
            self.calls.append(Recorded(pool, hidden_states, metadata, hidden_states.clone(), held))
            return pool(hidden_states, metadata)

        return call


def serves(subject: Subject, workload: Workload) -> bool:
    """Whether the workload asks the subject only for what it has."""
    return supports(subject, as_called(subject, workload.scenario))


@dataclass(frozen=True)
class Prepared:
    """A subject that is right on a workload."""

    timed: Timed
    rows: torch.Tensor
    """What the timed call works on, (sum of `counts`, hidden_size)."""
    counts: list[int]
    """Rows of each request."""


class Stage:
    """A workload on a device, on which one subject after the other is proved."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.workload = workload
        self.device = device
        self._worlds: dict[str, World] = {}
        self._rows: list[torch.Tensor] = []

    def prepare(self, subject: Subject) -> Prepared:
        """Prove a subject right; those that are handed the same rows are timed on the same memory.

        Raises:
            WrongError: a contract is broken.
            SubjectError: the subject does not serve the workload.
        """
        if not serves(subject, self.workload):
            raise SubjectError(f"{subject.name} does not serve the workload {self.workload.name}")
        recorder = _Recorder(subject)
        judgement = start(self._world(subject), recorder.recording()).all_steps()
        if judgement.verdict is not Verdict.HOLDS:
            raise WrongError(subject, self.workload, judgement)
        recorded = recorder.calls[self.workload.call]
        recorded.restore()
        recorded.rows = self._shared(recorded.rows)
        counts = recorded.metadata.pooling_cursor.num_scheduled_tokens_cpu.tolist()
        return Prepared(Timed(subject.name, *_work(self.workload, recorded, self.device)), recorded.rows, counts)

    def _world(self, subject: Subject) -> World:
        scenario = as_called(subject, self.workload.scenario)
        rows = scenario.options.rows
        if rows not in self._worlds:
            self._worlds[rows] = World(scenario, self.device)
        return self._worlds[rows]

    def _shared(self, rows: torch.Tensor) -> torch.Tensor:
        for known in self._rows:
            if known.shape == rows.shape and same_numbers(known, rows):
                return known
        self._rows.append(rows)
        return rows


def _work(
    workload: Workload, recorded: Recorded, device: torch.device
) -> tuple[Callable[[], Any], Callable[[], None] | None]:
    pool, rows, metadata = recorded.pool, recorded.rows, recorded.metadata
    cursor = metadata.pooling_cursor
    match workload.work:
        case "pool":
            return lambda: pool(rows, metadata), recorded.restore if recorded.uses_states() else None
        case "build-cursor":
            counts: Any = cursor.num_scheduled_tokens_cpu.numpy().astype(np.int32)
            lens = cursor.seq_lens_cpu.clone()
            return lambda: metadata.build_pooling_cursor(counts, lens, device), None
        case "slice-cursor":
            half = slice(0, len(metadata.pooling_params) // 2)
            return lambda: metadata[half], None
