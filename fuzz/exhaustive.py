"""ALL pooling on every schedule of a small scope, as a walk over a graph.

What a pooler may depend on between steps is what the pooling states hold. So instead of taking every
path of steps from the start, each distinct content of the states is a node, each possible step from it
an edge, and walking every edge once covers every path. That nothing else is kept is itself checked, by
taking a sample of whole paths (`fuzz.check`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

import torch

from fuzz.fallen import Fallen
from fuzz.runner import Run
from fuzz.verdict import Judgement
from fuzz.world import World
from impl.config import Subject
from oracle.contracts import tensors_in
from oracle.device.memory import data
from oracle.rows import bits
from oracle.scenario import Options, Request, Scenario, Step

Path = tuple[Step, ...]


@dataclass(frozen=True)
class Scope:
    """Every schedule of 1 to `max_requests` requests of 1 to `max_tokens` tokens."""

    max_requests: int = 3
    max_tokens: int = 3

    def lengths(self) -> Iterator[tuple[int, ...]]:
        """The prompt lengths of each batch in scope."""
        for count in range(1, self.max_requests + 1):
            yield from product(range(1, self.max_tokens + 1), repeat=count)


@dataclass
class Coverage:
    """What a walk covered: `schedules` counts whole paths, batch order included."""

    states: int = 0
    transitions: int = 0
    schedules: int = 0
    comparisons: int = 0


@dataclass
class Node:
    """A content of the pooling states, how it was first reached, and where its steps lead."""

    computed: dict[str, int]
    states: dict[str, dict[str, Any]]
    path: Path
    successors: list[Any] = field(default_factory=list)


Failed = Callable[[Scenario, Judgement], None]


def walk(
    subject: Subject,
    options: Options,
    scope: Scope,
    device: torch.device,
    failed: Failed,
    tell: Callable[[Coverage], None],
) -> Coverage:
    """Take every step from every reachable state once, and judge each.

    `failed` gets the path to each step that breaks a contract; `tell` the coverage after each step.
    """
    coverage = Coverage()
    with _unwritten_memory_is_nan():
        for lengths in scope.lengths():
            requests = tuple(Request(chr(97 + at), "token_embed", (1,) * length) for at, length in enumerate(lengths))
            _walk_batch(subject, Scenario(requests, (), options), device, coverage, failed, tell)
    return coverage


@contextmanager
def _unwritten_memory_is_nan() -> Iterator[None]:
    """Let states be told apart by what was written to them, not by what was left in their memory.

    Source: https://docs.pytorch.org/docs/stable/deterministic.html
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _walk_batch(
    subject: Subject,
    scenario: Scenario,
    device: torch.device,
    coverage: Coverage,
    failed: Failed,
    tell: Callable[[Coverage], None],
) -> None:
    run = Run(World(scenario, device), subject, max_rows=sum(r.prompt_len for r in scenario.requests))
    lengths = {request.name: request.prompt_len for request in scenario.requests}
    first = Node(dict.fromkeys(lengths, 0), {name: vars(run.states[name]) for name in lengths}, ())
    start = _key(first)
    nodes = {start: first}
    pending = [start]
    while pending:
        node = nodes[pending.pop()]
        left = {name: lengths[name] - node.computed[name] for name in lengths}
        for step in steps_from(left, scenario.options.enable_chunked_prefill):
            coverage.transitions += 1
            whole_before = run.borrowed is None
            reached = _take(run, node, step)
            if whole_before and run.borrowed is not None:
                # Told once a batch: with buffers that are not used again the walk goes on from there.
                failed(
                    _with_steps(scenario, (*node.path, step)), run.borrowed.judgement(run.comparisons, len(node.path))
                )
            if isinstance(reached, Judgement):
                failed(_with_steps(scenario, (*node.path, step)), reached)
                continue
            key = _key(reached)
            if key not in nodes:
                nodes[key] = reached
                pending.append(key)
            node.successors.append(key)
            tell(coverage)
    coverage.comparisons += run.comparisons
    coverage.states += len(nodes)
    coverage.schedules += _paths(nodes, start)


def steps_from(left: dict[str, int], chunked: bool) -> Iterator[Step]:
    """Every step that can be taken: who is scheduled, with how many tokens, in which batch order."""
    names = [name for name, tokens in left.items() if tokens]
    for counts in product(*(range(0, left[name] + 1, 1 if chunked else left[name]) for name in names)):
        scheduled = [(name, count) for name, count in zip(names, counts, strict=True) if count]
        if scheduled:
            for order in permutations(scheduled):
                yield Step(order)


def _take(run: Run, node: Node, step: Step) -> Node | Judgement:
    """Put the subject into a node's state, take a step, and see where it leads."""
    run.computed = dict(node.computed)
    scheduled = {name for name, _ in step.scheduled}
    for name, held in node.states.items():
        run.states[name] = run.subject.api.PoolingStates()
        # A request that is not in the batch can't be reached by the pooler, so its state can be shared.
        vars(run.states[name]).update(_copy(held) if name in scheduled else held)
    try:
        run.step(step)
    except Fallen as fallen:
        return fallen.judgement(run.comparisons, len(node.path))
    return Node(run.computed, {name: vars(run.states[name]) for name in node.states}, (*node.path, step))


def _copy(held: Any) -> Any:
    """A copy of what a state holds, down to the tensors."""
    if isinstance(held, torch.Tensor):
        return held.clone()
    if isinstance(held, dict):
        return {name: _copy(value) for name, value in held.items()}
    if isinstance(held, (list, tuple)):
        return type(held)(_copy(value) for value in held)
    return copy.deepcopy(held)


def _key(node: Node) -> tuple[Any, ...]:
    return tuple(
        (node.computed[name], *(_bytes(tensor) for tensor in tensors_in(held))) for name, held in node.states.items()
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    return bits(data(tensor).cpu().contiguous()).numpy().tobytes()


def _paths(nodes: dict[Any, Node], start: Any) -> int:
    """How many paths lead from the start to a node without a step left."""
    counted: dict[Any, int] = {}

    def count(key: Any) -> int:
        if key not in counted:
            successors: Sequence[Any] = nodes[key].successors
            counted[key] = sum(map(count, successors)) if successors else 1
        return counted[key]

    return count(start)


def _with_steps(scenario: Scenario, steps: Path) -> Scenario:
    return Scenario(scenario.requests, steps, scenario.options)
