"""Drives an engine through a scenario's traffic, and judges what it does for every request.

No clock, threads or randomness: the same traffic gives the same trace. The harness stands where the
model would, sees each call of the pooler, and so pins a fault to the layer that caused it.
"""

import copy
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from fuzz.blame import blame, blamed
from fuzz.fallen import Fallen, raised
from fuzz.traced import traced
from fuzz.verdict import Judgement, Verdict
from fuzz.world import World, params_given, params_of
from impl.config import Subject, SubjectError
from impl.engine import Engine, EngineConfig, EngineRequest, EngineStep, Span
from oracle import contracts
from oracle.contracts import BEFORE, Call, Outcome, broken_after, first_broken
from oracle.rows import STALE
from oracle.scenario import Traffic

PATIENCE: Final = 4
"""Steps without a scheduled token, nobody still to come, after which an engine is taken to be stuck."""

PARAMS: Final = (
    "task", "dimensions", "step_tag_id", "returned_token_ids", "use_activation", "normalize", "activation", "softmax",
)  # fmt: skip
"""Pooling params that a request brings with it, by the names of all releases."""


class EngineRun:
    """An engine in the middle of a scenario; also what it observes through (`impl.engine.Observer`)."""

    def __init__(self, world: World, subject: Subject) -> None:
        traffic = world.scenario.traffic
        if traffic is None or subject.build_engine is None:
            raise SubjectError(f"{subject.name} is no engine, or the scenario has no traffic")
        self.world = world
        self.subject = subject
        self.traffic: Traffic = traffic
        self.comparisons = 0
        self.trace: list[EngineStep] = []
        self._number = 0
        self._spans: Sequence[Span] = ()
        self._results: dict[str, list[torch.Tensor | None]] = {}
        self._gone: set[str] = set()
        self._pristine_params = {name: params_of(request, subject) for name, request in world.requests.items()}
        self._given: tuple[Call, torch.Tensor, list[Any]] | None = None
        self._borrowed: Judgement | None = None
        """The first breach of ownership; the engine goes on with a new buffer each step."""
        options = world.scenario.options
        self._buffer = torch.full(
            (traffic.token_budget, options.hidden_size), STALE, dtype=world.universe.dtype, device=world.device
        )
        try:
            self.engine: Engine = subject.build_engine(world.config(), _engine_config(traffic), self)
        except Exception as error:
            raise SubjectError(
                f"{subject.name} could not make an engine for {traffic}: {type(error).__name__}: {error}"
            ) from error

    def all_steps(self) -> Judgement:
        """Take steps until every request has left, or one falls."""
        return replace(self._judged(), trace=tuple(map(traced, self.trace)))

    def _judged(self) -> Judgement:
        try:
            self._run()
            if self._borrowed is not None:
                return replace(self._borrowed, comparisons=self.comparisons)
            return Judgement(Verdict.HOLDS, self.comparisons)
        except Fallen as fallen:
            if len(self.trace) == self._number:
                # The engine did not come to tell of this step, so all that is known is what it computed.
                self.trace.append(EngineStep(tuple(self._spans)))
            return fallen.judgement(self.comparisons, self._number)
        except Exception:
            return Judgement(Verdict.UNKNOWN, self.comparisons, "", traceback.format_exc(), self._number)

    def _run(self) -> None:
        last_event = self.traffic.last_event
        tokens = sum(request.prompt_len for request in self.world.scenario.requests)
        # Each request may be preempted by each other, and computed anew token by token; beyond that it is stuck.
        max_steps = last_event + PATIENCE + tokens * (2 + len(self.world.requests))
        idle = 0
        for number in range(max_steps):
            self._number = number
            self._spans = ()
            self._deliver(number)
            step = self._step()
            self._settle(step)
            idle = 0 if step.spans else idle + 1
            if number >= last_event:
                waiting = self.engine.unfinished()
                if not waiting and not step.spans:
                    break
                if idle >= PATIENCE:
                    self._fall_if(
                        contracts.every_request_finishes(self._standing(waiting), idle), "every-request-finishes"
                    )
        else:
            waiting = self._standing(self.engine.unfinished())
            self._fall_if(contracts.every_request_finishes(waiting, max_steps), "every-request-finishes")
        self._check_end()

    def _standing(self, names: Sequence[str]) -> list[str]:
        """Each request with how far it has come."""
        reached = {span.name: span.start + span.count for step in self.trace for span in step.spans}
        return [f"{name} ({reached.get(name, 0)} of {self.world.requests[name].prompt_len} tokens)" for name in names]

    def _deliver(self, number: int) -> None:
        """Whatever reaches the engine before this step."""
        if number in self.traffic.cache_resets:
            self._guarded(self.engine.reset_prefix_cache)
        for request, arrival in zip(self.world.scenario.requests, self.traffic.arrivals, strict=True):
            if arrival.at == number:
                wanted = EngineRequest(request.name, request.prompt_token_ids, params_given(request), arrival.priority)
                self._guarded(lambda wanted=wanted: self.engine.add(wanted))
            if arrival.abort_at == number and arrival.at <= number and request.name not in self._results:
                self._gone.add(request.name)
                self._guarded(lambda name=request.name: self.engine.abort(name))

    def _step(self) -> EngineStep:
        step: EngineStep = self._guarded(self.engine.step)
        self.trace.append(step)
        self._fall_if(contracts.batch_belongs_together(step.slot_problems), "batch-belongs-together")
        return step

    def _guarded(self, call: Any) -> Any:
        """Call into the engine; what it raises is a finding, what we raise within it is not."""
        try:
            return call()
        except Fallen:
            raise
        except Exception as error:
            raise raised(error, may_reject=False) from error

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        """See `impl.engine.Observer.forward`."""
        self._spans = spans
        rows = torch.cat([self.world.universe.of(span.name, span.start, span.count) for span in spans])
        if self._borrowed is None:
            self._buffer.fill_(STALE)
        else:
            self._buffer = torch.full_like(self._buffer, STALE)
        self._buffer[: rows.shape[0]] = rows
        return self._buffer[: rows.shape[0]]

    def before_pooling(self, hidden_states: torch.Tensor, metadata: Any) -> None:
        """See `impl.engine.Observer.before_pooling`."""
        names = [span.name for span in self._spans]
        call = Call(hidden_states, metadata, names, [span.start for span in self._spans])
        broken = first_broken(BEFORE, call)
        if broken:
            raise Fallen(Verdict.VIOLATES, broken.contract, broken.message)
        for span, prompt_len, params in zip(self._spans, call.prompt_lens, metadata.pooling_params, strict=True):
            due = self._pristine_params[span.name]
            request = self.world.requests[span.name]
            problem = None
            if prompt_len != request.prompt_len:
                problem = f"request {span.name} has prompt length {prompt_len}, but should have {request.prompt_len}"
            else:
                wrong = [name for name in PARAMS if getattr(params, name, None) != getattr(due, name, None)]
                if wrong:
                    has, should = (
                        ", ".join(f"{name} {getattr(own, name, None)}" for name in wrong) for own in (params, due)
                    )
                    problem = f"request {span.name} is pooled with {has}, but should be with {should}"
            self._fall_if(contracts.batch_belongs_together([problem] if problem else []), "batch-belongs-together")
        self._given = call, hidden_states.clone(), copy.deepcopy(list(metadata.pooling_params))

    def after_pooling(self, hidden_states: torch.Tensor, metadata: Any, outputs: Any) -> None:
        """See `impl.engine.Observer.after_pooling`."""
        if self._given is None:
            raise Fallen(Verdict.UNKNOWN, "", "the pooler returned without having been called")
        call, given, params_before = self._given
        finished = [seq == prompt for seq, prompt in zip(call.seq_lens, call.prompt_lens, strict=True)]
        outcome = Outcome(
            call=call,
            outputs=outputs,
            expected=[self.world.due(name, done) for name, done in zip(call.names, finished, strict=True)],
            hidden_states_before=given,
            cursor_before=call.cursor,
            params_before=params_before,
            kept_rows=call.prompt_lens,
            must_own_outputs=self.world.scenario.options.async_scheduling,
            origin=self.world.universe.origin,
            finished=finished,
        )
        borrows, broken = broken_after(outcome, self._borrowed is not None)
        if borrows:
            self._borrowed = Fallen(Verdict.VIOLATES, borrows.contract, borrows.message).judgement(0, len(self.trace))
        if broken:
            wrong = blame(outcome, self.world.universe)
            raise Fallen(Verdict.VIOLATES, broken.contract, broken.message, blame=wrong)
        self.comparisons += len(call.names)

    def _settle(self, step: EngineStep) -> None:
        """Copy what was handed out, as an engine does on its way to the client before the next step."""
        for name, outputs in step.outputs.items():
            if name not in self._gone:
                copies = [None if output is None else output.clone() for output in outputs]
                self._results.setdefault(name, []).extend(copies)

    def _check_end(self) -> None:
        """Everybody has left: each with one result, the right one, and nothing is left behind."""
        for name in self.world.requests:
            if name in self._gone:
                continue
            results = self._results.get(name, [])
            self._fall_if(contracts.finishes_once(name, results), "finishes-once")
            result = results[0]
            due, universe = self.world.expected(name), self.world.universe
            message = result is not None and contracts.wrong_result(due, result, universe.origin)
            if message:
                told = f"after the engine handed it out, request {name} {message}"
                raise Fallen(Verdict.VIOLATES, "values", told, blame=blamed(name, due, result, universe))
            self.comparisons += 1
        self._fall_if(contracts.nothing_left_behind(self.engine.leftovers()), "nothing-left-behind")

    @staticmethod
    def _fall_if(message: str | None, contract: str) -> None:
        if message is not None:
            raise Fallen(Verdict.VIOLATES, contract, message)


def _engine_config(traffic: Traffic) -> EngineConfig:
    return EngineConfig(
        traffic.token_budget,
        traffic.max_num_seqs,
        traffic.max_model_len,
        traffic.num_blocks,
        traffic.block_size,
        traffic.long_prefill_token_threshold,
        traffic.prefix_caching,
        traffic.priority_policy,
    )
