"""ALL pooling through the life of chunked requests, as a Hypothesis state machine.

A second driver, independent of the first: it shares no code with `fuzz.runner`, the generator or the
contracts, and what it holds a pooler to is a plain list of the rows handed over so far. A mistake in
either driver shows as a disagreement. Not for other pooling types, subgroups or heads: the runner has those.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from impl.config import PoolerConfig, PoolFn, Subject, SubjectError

MAX_TOKENS: Final = 6
MAX_REQUESTS: Final = 5
CPU: Final = torch.device("cpu")
OVERWRITTEN: Final = -1.0
"""Fills the buffer once a step is over; in no row."""

Rows: TypeAlias = list[list[float]]
"""Hidden states as plain numbers. A row is (request, attempt, token), each counted from 1: it says whose
it is, and is told from the row of the same token before a preemption. Small integers without a zero, so
that `==` is equality of bits."""


def chunked_prefill_machine(subject: Subject) -> type["ChunkedPrefill"]:
    """The state machine that drives this subject's ALL pooling at level `method`, on the CPU.

    Run it with `hypothesis.stateful.run_state_machine_as_test`, or as a test case by its `TestCase`.

    Raises:
        SubjectError: the subject does not serve ALL pooling at that level, or not in chunks.
    """
    if "ALL" not in subject.supports or "method" not in subject.levels:
        raise SubjectError(
            f"{subject.name} serves {', '.join(sorted(subject.supports))} at level {' and '.join(subject.levels)}, "
            "but the chunked-prefill machine needs ALL at level method"
        )
    if "chunked-token-tasks" in subject.lacks:
        raise SubjectError(f"{subject.name} takes a token task's prompt only whole, so there are no chunks to try")
    return type("ChunkedPrefillMachine", (ChunkedPrefill,), {"subject": subject})


@dataclass
class _Request:
    """A request that is waiting or running, and the model of it."""

    name: str
    serial: float
    prompt_len: int
    states: Any
    attempt: float = 1.0
    given: Rows = field(default_factory=list)
    """The rows handed to the pooler since the request was last started."""
    kept: list[Rows] = field(default_factory=list)
    """What its state held at the end of the last call."""

    @property
    def left(self) -> int:
        """Prompt tokens still to be computed."""
        return self.prompt_len - len(self.given)

    def give(self, count: int) -> Rows:
        """Hand over the next `count` rows."""
        first = len(self.given) + 1
        rows = [[self.serial, self.attempt, float(token)] for token in range(first, first + count)]
        self.given += rows
        return rows


@st.composite
def _schedules(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Some of the unfinished requests in some order, each with some of the tokens it has left."""
    machine: ChunkedPrefill = draw(st.runner())
    names = draw(st.lists(st.sampled_from(list(machine.unfinished)), min_size=1, unique=True))
    return [(name, draw(st.integers(1, machine.unfinished[name].left))) for name in names]


class ChunkedPrefill(RuleBasedStateMachine):
    """An engine with one reused hidden-state buffer, and its requests.

    Rules have plain arguments and there is one invariant, so that a failing example reads as the calls that
    repeat it.
    """

    subject: ClassVar[Subject]

    def __init__(self) -> None:
        super().__init__()
        self.unfinished: dict[str, _Request] = {}
        self.vacated: dict[str, Any] = {}
        """States of the requests that are gone, by request; none may hold anything."""
        self.promised: dict[str, tuple[Rows, Any]] = {}
        """Outputs that own their rows, with the rows they must keep."""
        self.arrived = 0
        self.buffer = torch.full((MAX_REQUESTS * MAX_TOKENS, 3), OVERWRITTEN)

    @initialize(async_scheduling=st.booleans())
    def start(self, async_scheduling: bool) -> None:
        """Build the pooler; under async scheduling its outputs must outlive the step."""
        self.async_scheduling = async_scheduling
        config = PoolerConfig(async_scheduling=async_scheduling, rows=self.subject.rows[0])
        self.pool: PoolFn = self.subject.build(config, "method")

    @precondition(lambda self: len(self.unfinished) < MAX_REQUESTS)
    @rule(prompt_len=st.integers(1, MAX_TOKENS))
    def arrive(self, prompt_len: int) -> None:
        """A request comes in."""
        self._arrive(prompt_len, self.subject.api.PoolingStates())

    @precondition(lambda self: self.vacated and len(self.unfinished) < MAX_REQUESTS)
    @rule(prompt_len=st.integers(1, MAX_TOKENS))
    def arrive_on_vacated_states(self, prompt_len: int) -> None:
        """A request comes in and is given the very state object of one that has left."""
        self._arrive(prompt_len, self.vacated.popitem()[1])

    @precondition(lambda self: self.unfinished)
    @rule(scheduled=_schedules())
    def step(self, scheduled: list[tuple[str, int]]) -> None:
        """A forward pass, whose buffer is overwritten once the outputs are read."""
        batch = [self.unfinished[name] for name, _ in scheduled]
        counts = [count for _, count in scheduled]
        rows = [row for request, count in zip(batch, counts, strict=True) for row in request.give(count)]
        hidden_states = self.buffer[: len(rows)]
        hidden_states.copy_(torch.tensor(rows))
        outputs = list(self.pool(hidden_states, self._metadata(batch, counts)))
        _require(
            len(outputs) == len(batch), f"{len(outputs)} outputs for {len(batch)} requests, but should be one each"
        )
        for request, output in zip(batch, outputs, strict=True):
            if request.left:
                _require(
                    output is None,
                    f"request {request.name} has {request.left} of {request.prompt_len} tokens to go, so its "
                    f"output should be None, but is {_shown(output)}",
                )
                request.kept = _held(request.states)
            else:
                self._finish(request, output)
        self.buffer.fill_(OVERWRITTEN)

    @precondition(lambda self: any(request.given for request in self.unfinished.values()))
    @rule(
        name=st.runner().flatmap(
            lambda self: st.sampled_from([name for name, request in self.unfinished.items() if request.given])
        )
    )
    def preempt(self, name: str) -> None:
        """A running request is put back to its first token; the caller clears its state."""
        request = self.unfinished[name]
        request.states.clean()
        request.attempt += 1
        request.given, request.kept = [], []

    @precondition(lambda self: self.unfinished)
    @rule(name=st.runner().flatmap(lambda self: st.sampled_from(list(self.unfinished))))
    def abort(self, name: str) -> None:
        """A request leaves before its end; the caller clears its state."""
        self.vacated[name] = self.unfinished.pop(name).states
        self.vacated[name].clean()

    @invariant()
    def nothing_changes_afterwards(self) -> None:
        """What was kept or promised stays as it was, and what is over is forgotten."""
        for request in self.unfinished.values():
            held = _held(request.states)
            _require(
                held == request.kept,
                f"the state of request {request.name} should hold {request.kept} as when the pooler returned, but "
                f"once the step's buffer was overwritten with {OVERWRITTEN:g} it holds {held}",
            )
        for name, states in self.vacated.items():
            held = _held(states)
            _require(not held, f"request {name} is over, so its state should be empty, but holds {held}")
        for name, (due, output) in self.promised.items():
            _require(
                _shown(output) == due,
                f"under async scheduling request {name}'s output should stay {due}, but once the step's buffer was "
                f"overwritten with {OVERWRITTEN:g} it is {_shown(output)}",
            )

    def _arrive(self, prompt_len: int, states: Any) -> None:
        self.arrived += 1
        name = f"r{self.arrived}"
        self.unfinished[name] = _Request(name, float(self.arrived), prompt_len, states)

    def _metadata(self, batch: list[_Request], counts: list[int]) -> Any:
        api = self.subject.api
        metadata = api.PoolingMetadata(
            prompt_lens=torch.tensor([request.prompt_len for request in batch], dtype=torch.int32),
            prompt_token_ids=None,
            prompt_token_ids_cpu=None,
            pooling_params=[api.PoolingParams(task="token_embed") for _ in batch],
            pooling_states=[request.states for request in batch],
        )
        seq_lens = torch.tensor([len(request.given) for request in batch], dtype=torch.int32)
        metadata.build_pooling_cursor(np.array(counts, dtype=np.int32), seq_lens, CPU)
        return metadata

    def _finish(self, request: _Request, output: Any) -> None:
        _require(
            _shown(output) == request.given and output.dtype == self.buffer.dtype,
            f"request {request.name} is finished, so its output should be its rows {request.given} in "
            f"{self.buffer.dtype} (a row is request, attempt, token), but is {_shown(output)} in "
            f"{getattr(output, 'dtype', 'no dtype')}",
        )
        del self.unfinished[request.name]
        self.vacated[request.name] = request.states
        if self.async_scheduling:
            self.promised[request.name] = (request.given, output)


def _held(states: Any) -> list[Rows]:
    """The rows in a request's pooling states, chunk by chunk, as plain numbers."""
    return [chunk.tolist() for chunk in states.hidden_states_cache]


def _shown(output: Any) -> Any:
    """A tensor as plain numbers; anything else as it is."""
    return output.tolist() if isinstance(output, torch.Tensor) else output


def _require(holds: bool, otherwise: str) -> None:
    # Not `assert`, which `python -O` drops.
    if not holds:
        raise AssertionError(otherwise)
