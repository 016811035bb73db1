"""What a scenario hands to poolers, call by call, as plain data: rows by name instead of by value.

The runner itself takes the steps, so that what is exported is what was run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from fuzz.pooler_call import PoolerCall
from fuzz.runner import Run
from fuzz.world import World
from impl.config import Subject
from oracle.scenario import POOLING_TYPES, Scenario, Step


@dataclass(frozen=True)
class TracedCall:
    """One call of a pooler; per-request tuples are in batch order."""

    step: int
    pooling_type: str
    """What the pooler should compute; empty for a whole pooler."""
    names: tuple[str, ...]
    rows: tuple[tuple[str, int] | None, ...]
    """Request and position of each row of `hidden_states`; None is a row of nan: padding, or a gap."""
    batch_start: int
    """Place in the step's batch of the call's first request."""
    prompt_lens: tuple[int, ...]
    scheduled: tuple[int, ...]
    seq_lens: tuple[int, ...]
    may_reject: bool

    @property
    def finished(self) -> list[bool]:
        """Whose last prompt token is in this call."""
        return [seq == prompt for seq, prompt in zip(self.seq_lens, self.prompt_lens, strict=True)]


def trace(scenario: Scenario) -> list[TracedCall]:
    """Every call of the scenario's poolers."""
    options = msgspec.structs.replace(scenario.options, hidden_size=2, dtype="float32", content="exact")
    run = _Trace(World(msgspec.structs.replace(scenario, options=options), torch.device("cpu")))
    for step in scenario.steps:
        run.step(step)
    return run.calls


_ANY = Subject(
    "trace",
    lambda config, level: lambda hidden_states, metadata: [],
    supports=frozenset(POOLING_TYPES),
    rows=("group", "step"),
    levels=("method", "pooler"),
)


class _Trace(Run):
    """A run that pools nothing and notes what it would hand over; its rows are (request, position)."""

    def __init__(self, world: World) -> None:
        super().__init__(world, _ANY)
        self.calls: list[TracedCall] = []
        self._places = list(world.requests)
        self._step = -1
        self._scheduled: dict[str, int] = {}

    def step(self, step: Step) -> None:
        self._step += 1
        self._scheduled = dict(step.scheduled)
        super().step(step)

    def _rows(self, names: Sequence[str], starts: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
        rows = [
            (self._places.index(name), position)
            for name, start, count in zip(names, starts, counts, strict=True)
            for position in range(start, start + count)
        ]
        return torch.tensor(rows, dtype=torch.float32).reshape(-1, 2)

    def _judge(self, call: PoolerCall, computed_before: dict[str, int]) -> None:
        batch = list(self._scheduled)
        rows: list[list[Any]] = call.hidden_states.tolist()
        self.calls.append(
            TracedCall(
                step=self._step,
                pooling_type=call.pooling_type,
                names=tuple(call.names),
                rows=tuple(None if row[0] != row[0] else (self._places[int(row[0])], int(row[1])) for row in rows),
                batch_start=batch.index(call.names[0]) if call.names else 0,
                prompt_lens=tuple(self.world.universe.lengths[name] for name in call.names),
                scheduled=tuple(self._scheduled[name] for name in call.names),
                seq_lens=tuple(self.computed[name] for name in call.names),
                may_reject=call.may_reject,
            )
        )
