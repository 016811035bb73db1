"""A finding as one standalone test: it needs torch and the subject, nothing of this project.

Red while the subject is at fault, green once it is right.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from fuzz.explain import headline, pictures
from fuzz.export import python
from fuzz.export.trace import TracedCall, trace
from fuzz.findings import ExportError, Finding
from fuzz.rendering import render
from fuzz.world import World
from impl.builtin import BUILTIN
from oracle import metadata
from oracle.contracts import named
from oracle.reference import classifier, dense, projector
from oracle.rows import STALE
from oracle.scenario import Scenario

BY_OUTPUT: Final = frozenset((
    "one-output-per-request", "none-iff-unfinished", "row-count", "dtype-and-device", "values",
    "outputs-own-their-rows", "accepts-valid-input", "reject-or-be-right", "state-determines-behaviour",
))  # fmt: skip
"""Contracts whose breach shows in what is returned; the others need a check of their own."""
BY_CHECK: Final = frozenset(
    ("inputs-unchanged", "state-owns-its-rows", "state-is-bounded", "state-cleared", "cursor-is-a-snapshot")
)
MOST_WEIGHTS: Final = 1 << 14
"""Weights of a layer that a test still spells out; compiling the text takes a thousand times their memory."""


@dataclass(frozen=True)
class _Block:
    """Statements that belong to one call, under one comment."""

    comment: str
    lines: list[str]


def as_pytest(finding: Finding) -> str:
    """The source of a test file.

    Raises:
        ExportError: it can't be told from outside the harness.
    """
    if finding.scenario.traffic is not None:
        raise ExportError(
            "an engine is its scheduler, batch and runner, which a standalone test would have to set up at length; "
            "`--as issue` tells the traffic, what the engine did in each step, and how to run it again"
        )
    if finding.contract not in BY_OUTPUT | BY_CHECK:
        raise ExportError(
            f"{finding.contract} can't be told by a standalone test; those that can are "
            f"{', '.join(sorted(BY_OUTPUT | BY_CHECK))}"
        )
    if finding.before is not None:
        raise ExportError(
            "it fails only after other scenarios in the same process, which a standalone test doesn't run"
        )
    return _Writer(finding).source()


class _Writer:
    """One finding on its way to source."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.scenario = _until(finding)
        self.options = self.scenario.options
        self.world = World(self.scenario, torch.device("cpu"))
        self.requests = {request.name: request for request in self.scenario.requests}
        self.names = python.variables(self.scenario)
        self.calls = trace(self.scenario)
        if self.world.documents:
            raise ExportError("late interaction is the worker's, which a standalone test does not have")
        if not self.calls:
            raise ExportError("no pooler is called in this scenario, so there is nothing to test")
        types = list(dict.fromkeys(call.pooling_type for call in self.calls))
        self.poolers = {kind: "pooler" if len(types) == 1 else f"pool_{kind.lower()}" for kind in types}

    def source(self) -> str:
        """The test file."""
        finding, options = self.finding, self.options
        contract = named(finding.contract)
        vllm = finding.spec.startswith("vllm")
        blocks = list(self._blocks())
        body = "\n".join(line for block in blocks for line in block.lines)
        return render(
            "test.py.j2",
            headline=headline(finding),
            contract=contract,
            subject=finding.subject,
            vllm=vllm,
            builtin=finding.spec in BUILTIN,
            where=_where(finding.spec),
            options=options,
            head=self._head(),
            tasks=sorted({request.task for request in self.scenario.requests}),
            test_name=re.sub(r"\W+", "_", finding.contract),
            poolers=self.poolers,
            prompts=list(python.prompts(self.scenario, self.world, self.names)),
            formula=python.formula(self.scenario) if python.is_large(self.scenario) else [],
            params=[(self.names[name], python.params(request)) for name, request in self.requests.items()],
            blocks=blocks,
            needs_within="is_within(" in body,
            needs_token_ids=self.world.needs_token_ids,
            metadata_source=None if vllm else _metadata_source(),
        )

    def _head(self) -> dict[str, Any]:
        """The learned layers, at level pooler, as Python expressions."""
        head, scenario = self.options.head, self.scenario
        made: dict[str, Any] = {
            "head_dtype": head.head_dtype and f"torch.{head.head_dtype}",
            "logit_mean": head.logit_mean,
            "logit_sigma": head.logit_sigma,
            "projector": None,
            "classifier": None,
            "dense": None,
        }
        if head.dense and self.finding.spec.startswith("vllm"):
            raise ExportError("BERT's dense layer can't be made without a model in a standalone test")
        for name, size, layer in (
            ("projector", head.embedding_size, projector),
            ("classifier", head.num_labels, classifier),
            ("dense", self.options.hidden_size if head.dense else None, dense),
        ):
            if size is not None:
                widths = {self._width(request.name) for request in scenario.requests}
                if len(widths) > 1:
                    raise ExportError(f"the {name} is given rows of {len(widths)} widths, which one matrix can't take")
                weights = layer(size, self.options.seed).matrix(widths.pop())
                if weights.numel() > MOST_WEIGHTS:
                    raise ExportError(f"the {name} has {weights.numel():,} weights, too many to write into a test")
                made[name] = python.literal(weights.tolist())
        return made

    def _width(self, name: str) -> int:
        columns = self.requests[name].returned_token_ids
        step = self.scenario.pooling_type(self.requests[name]) == "STEP"
        return len(columns) if step and columns else self.options.hidden_size

    def _blocks(self) -> Iterator[_Block]:
        told = list(pictures(self.scenario, None, None))
        by_step = {step: list(calls) for step, calls in groupby(self.calls, key=lambda call: call.step)}
        for index, step in enumerate(self.scenario.steps):
            cleaned = [f"{self.names[name]}_state.clean()" for name in (*step.preempted, *step.aborted)]
            if cleaned:
                yield _Block(f"step {index}: {', '.join(told[index].events)}", cleaned)
            for call in by_step.get(index, []):
                tokens = ", ".join(f"{name} {count}" for name, count in zip(call.names, call.scheduled, strict=True))
                yield _Block(
                    f"step {index}: scheduled tokens: {tokens or 'none'}",
                    list(self._call(call, index == len(self.scenario.steps) - 1)),
                )

    def _call(self, call: TracedCall, last: bool) -> Iterator[str]:
        contract = self.finding.contract
        states = [f"{self.names[name]}_state" for name in call.names]
        yield f"hidden_states = {python.hidden_states(call, self.scenario, self.names)}"
        if contract == "cursor-is-a-snapshot" and last:
            yield f"counts = np.array({list(call.scheduled)}, dtype=np.{self.options.index_dtype})"
        yield from self._metadata(call, "counts" if contract == "cursor-is-a-snapshot" and last else "")
        if contract == "cursor-is-a-snapshot" and last:
            yield "counts.fill(-1)"
            yield f"assert metadata.pooling_cursor.num_scheduled_tokens_cpu.tolist() == {list(call.scheduled)}"
            return
        yield from self._malformed(call)
        if contract == "inputs-unchanged" and last:
            yield "given = hidden_states.clone()"
        pool = f"{self.poolers[call.pooling_type]}(hidden_states, metadata)"
        if call.may_reject:
            yield "try:"
            yield f"    outputs = {pool}"
            yield "except Exception:"
            yield "    return  # Such input may be refused."
        else:
            yield f"outputs = {pool}"
        if contract == "inputs-unchanged" and last:
            yield "torch.testing.assert_close(hidden_states, given, rtol=0, atol=0, equal_nan=True)"
        if contract == "state-owns-its-rows" and last:
            for state in states:
                yield f"{state}_rows = [rows.clone() for rows in {state}.hidden_states_cache]"
        overwrite = f"hidden_states.fill_({STALE:g})  # The engine reuses the buffer for the next step."
        if self.options.async_scheduling:
            # The next step may start before the outputs are read.
            yield overwrite
        yield f"assert len(outputs) == {len(call.names)}"
        for place, (name, finished) in enumerate(zip(call.names, call.finished, strict=True)):
            request = self.requests[name]
            if finished:
                yield from python.check(f"outputs[{place}]", request, self.scenario, self.world, self.names[name])
            elif request.is_token_task:
                yield f"assert outputs[{place}] is None"
        if not self.options.async_scheduling and (not last or contract == "state-owns-its-rows"):
            yield overwrite
        if last:
            yield from self._state_checks(call)

    def _state_checks(self, call: TracedCall) -> Iterator[str]:
        row_bytes = self.options.hidden_size * self.world.universe.rows.element_size()
        for name, finished in zip(call.names, call.finished, strict=True):
            state, prompt_len = f"{self.names[name]}_state", self.requests[name].prompt_len
            match self.finding.contract:
                case "state-owns-its-rows":
                    yield f"for now, then in zip({state}.hidden_states_cache, {state}_rows):"
                    yield "    torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)"
                case "state-is-bounded":
                    yield f"kept = [rows.untyped_storage() for rows in {state}.hidden_states_cache]"
                    yield "retained_bytes = sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values())"
                    yield f"assert retained_bytes <= {prompt_len * row_bytes}"
                case "state-cleared" if finished:
                    yield f"assert not {state}.hidden_states_cache"

    def _metadata(self, call: TracedCall, counts: str) -> Iterator[str]:
        """The call's metadata; absolute indices come of cutting it out of the whole step's."""
        whole = call
        cut = ""
        if self.options.rows == "step" and self.options.level == "method":
            step = dict(self.scenario.steps[call.step].scheduled)
            start = call.batch_start
            if len(step) != len(call.names):
                cut = f"[{start}:{start + len(call.names)}]"
                whole = _joined([other for other in self.calls if other.step == call.step and other.names])
        arguments = [
            f"[{', '.join(f'{self.names[name]}_params' for name in whole.names)}]",
            f"[{', '.join(f'{self.names[name]}_state' for name in whole.names)}]",
            f"prompt_lens={list(whole.prompt_lens)}",
            f"scheduled={counts or list(whole.scheduled)}",
            f"seq_lens={list(whole.seq_lens)}",
        ]
        if self.world.needs_token_ids:
            arguments.append(f"token_ids={python.token_ids(whole, self.requests, self.world.padding_token_id)}")
        yield "metadata = pooling_metadata("
        yield from (f"    {argument}," for argument in arguments)
        yield f"){cut}"

    def _malformed(self, call: TracedCall) -> Iterator[str]:
        """The caller's mistake, where the call has room for it (as in `fuzz.pooler_call.malform`)."""
        if len(call.names) < (2 if self.options.malformed == "gap" else 1):
            return
        match self.options.malformed:
            case "missing-scheduled-counts":
                yield "del metadata.pooling_cursor.num_scheduled_tokens_cpu"
            case "counts-on-device":
                yield "cursor = metadata.pooling_cursor"
                yield 'cursor.num_scheduled_tokens_cpu = cursor.num_scheduled_tokens_cpu.to("meta")'
            case "gap":
                yield "metadata.pooling_cursor.first_token_indices_gpu[-1] += 1"
                yield "metadata.pooling_cursor.last_token_indices_gpu[-1] += 1"


def _until(finding: Finding) -> Scenario:
    """The finding's scenario up to the step at which it falls."""
    scenario = finding.scenario
    if finding.step is None:
        return scenario
    return msgspec.structs.replace(scenario, steps=scenario.steps[: finding.step + 1])


def _joined(calls: list[TracedCall]) -> TracedCall:
    """One call of all of a step's requests."""
    first = calls[0]
    return TracedCall(
        first.step,
        "",
        tuple(name for call in calls for name in call.names),
        first.rows,
        0,
        tuple(length for call in calls for length in call.prompt_lens),
        tuple(count for call in calls for count in call.scheduled),
        tuple(length for call in calls for length in call.seq_lens),
        any(call.may_reject for call in calls),
    )


def _where(spec: str) -> dict[str, str]:
    """Directory, module and attribute to import a subject of one's own from."""
    where, _, attribute = spec.rpartition(":")
    if where.endswith(".py"):
        return {"directory": str(Path(where).parent), "module": Path(where).stem, "attribute": attribute}
    return {"directory": ".", "module": where, "attribute": attribute}


def _metadata_source() -> str:
    """The classes through which an engine speaks to a pooler, without their docstrings."""
    source = inspect.getsource(metadata)
    lines = source.splitlines()
    wanted = ("PoolingParams", "PoolingStates", "PoolingCursor", "PoolingMetadata")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name in wanted]
    dropped: set[int] = set()
    for node in [inner for outer in classes for inner in ast.walk(outer)]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            for text in (statement for statement in node.body if _is_text(statement)):
                dropped.update(range(text.lineno, _end(text) + 1))
                if text is node.body[0] and not lines[_end(text)].strip():
                    dropped.add(_end(text) + 1)
    kept = []
    for node in classes:
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        kept.append([lines[at - 1] for at in range(start, _end(node) + 1) if at not in dropped])
    return "\n\n\n".join("\n".join(part) for part in kept)


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
