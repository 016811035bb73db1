"""Engines are judged for every request, whatever happened to it, and a fault is pinned to its layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from fuzz.campaign import Budget, fuzz
from fuzz.engine import EngineRun
from fuzz.mix import for_subjects
from fuzz.start import start
from fuzz.traffic import Queued, SchedulerModel
from fuzz.world import World
from impl.engine import EngineRequest, EngineStep, Span
from oracle.scenario import Arrival, Options, Request, Scenario, Traffic, problems
from tests.fake_engine import FakeEngine, engine_subject
from tests.zoo.late import KeepsAView

CPU = torch.device("cpu")


def test_a_right_engine_holds() -> None:
    report = fuzz([engine_subject()], Budget(max_scenarios=250), seed=1, device=CPU)
    assert report.verdict == "holds", report
    assert report.mix["traffic"] == 250


class KeepsStateOverPreemption(FakeEngine):
    """vllm#55192: the runner restarts a request but not its pooling state."""

    def restart(self, name: str) -> None:
        self.computed[name] = 0


class Starves(FakeEngine):
    """Passes a request over once another has come."""

    def add(self, request: EngineRequest) -> None:
        if self.requests:
            self.requests[request.name] = request
        else:
            super().add(request)


class ReservesASlotForSampling(FakeEngine):
    """vllm#48039: a request that runs is computed up to one token short of what the model takes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.model = ReservingScheduler(self.model.traffic, Options(enable_chunked_prefill=self.model.chunked))


class ReservingScheduler(SchedulerModel):
    def _wanted(self, entry: Queued) -> int:
        wanted = super()._wanted(entry)
        return min(wanted, self.traffic.max_model_len - 1 - entry.computed) if entry in self.running else wanted

    def schedule(self) -> tuple[list[tuple[str, int]], list[str]]:
        scheduled, pushed_out = super().schedule()
        return [(name, count) for name, count in scheduled if count], pushed_out


class AnswersTwice(FakeEngine):
    def answers(self, spans: Sequence[Span], outputs: Any) -> Mapping[str, Sequence[torch.Tensor | None]]:
        return {name: [*results, *results] for name, results in super().answers(spans, outputs).items()}


class NeverAnswersSingleTokens(FakeEngine):
    def answers(self, spans: Sequence[Span], outputs: Any) -> Mapping[str, Sequence[torch.Tensor | None]]:
        return {name: rows for name, rows in super().answers(spans, outputs).items() if not name.startswith("b")}


class AnswersWithTheNeighboursRows(FakeEngine):
    def answers(self, spans: Sequence[Span], outputs: Any) -> Mapping[str, Sequence[torch.Tensor | None]]:
        return super().answers(spans, outputs[::-1])


class LeavesStatesOfTheAborted(FakeEngine):
    def abort(self, name: str) -> None:
        state = self.states.get(name)
        super().abort(name)
        if state is not None:
            self.states[name] = state


class MixesSlots(FakeEngine):
    def step(self) -> EngineStep:
        done = super().step()
        problems = ("slot 0 of request a has prompt length 9",) if len(done.spans) > 1 else ()
        return EngineStep(done.spans, done.preempted, (), problems, done.outputs)


class HandsOutItsLiveBatch(FakeEngine):
    """vllm#31584: the next step's requests stand where the last one's did."""

    last: tuple[str, ...] = ()

    def step(self) -> EngineStep:
        done = super().step()
        names = tuple(span.name for span in done.spans)
        told = (f"a step's results were those of {self.last}, but became those of {names}",)
        moved = bool(self.last) and names != self.last
        self.last = names
        return EngineStep(done.spans, done.preempted, rewritten=told * moved, outputs=done.outputs)


class PoolsWithTheNeighboursParams(FakeEngine):
    def pool(self, spans: Sequence[Span]) -> Any:
        for span in spans[1:]:
            self.requests[span.name] = EngineRequest(
                span.name, self.requests[span.name].prompt_token_ids, self.requests[spans[0].name].params, 0
            )
        return super().pool(spans)


class EditsTheParams(FakeEngine):
    """Its pooler switches the activation off once it has been applied."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        right = self.pooler

        def pool(hidden_states: torch.Tensor, metadata: Any) -> Any:
            outputs = right(hidden_states, metadata)
            for params in metadata.pooling_params:
                params.use_activation = None
            return outputs

        self.pooler = pool  # type: ignore[assignment]


class LosesQueriesOnReset(FakeEngine):
    """A reset clears every cache that there is."""

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self.scorer.release(list(self.scorer.rows))


class CountsAPreemptedDocumentAsGone(FakeEngine):
    """Its query is let go of with the last that is left, though that one comes back."""

    def restart(self, name: str) -> None:
        super().restart(name)
        self.scorer.gone([name])


class NobodyTellsOfAClientThatIsGone(FakeEngine):
    """vllm#56617: documents that were never scheduled are not counted."""

    def release(self, query: str) -> None:
        """Until 0.31 there was no such call."""


class KeepsQueriesInTheBuffer(FakeEngine):
    """A query's rows are kept without a copy."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scorer = KeepsAView()


class Raises(FakeEngine):
    def reset_prefix_cache(self) -> None:
        raise KeyError("block 7")


@pytest.mark.parametrize(
    ("engine", "contract"),
    [
        (KeepsStateOverPreemption, "state-is-fresh-at-the-start"),
        (Starves, "every-request-finishes"),
        (ReservesASlotForSampling, "every-request-finishes"),
        (AnswersTwice, "finishes-once"),
        (NeverAnswersSingleTokens, "finishes-once"),
        (AnswersWithTheNeighboursRows, "values"),
        (LeavesStatesOfTheAborted, "nothing-left-behind"),
        (MixesSlots, "batch-belongs-together"),
        (HandsOutItsLiveBatch, "step-output-is-a-snapshot"),
        (PoolsWithTheNeighboursParams, "batch-belongs-together"),
        (EditsTheParams, "inputs-unchanged"),
        (Raises, "accepts-valid-input"),
        (LosesQueriesOnReset, "accepts-valid-input"),
        (CountsAPreemptedDocumentAsGone, "accepts-valid-input"),
        (NobodyTellsOfAClientThatIsGone, "query-is-let-go"),
        (KeepsQueriesInTheBuffer, "values"),
    ],
)
def test_a_faulty_engine_is_caught_pinned_and_shrunk(engine: type[FakeEngine], contract: str) -> None:
    # To be preempted, a document has to come late and the engine to be short of blocks.
    most = 1_500 if engine is CountsAPreemptedDocumentAsGone else 400
    report = fuzz([engine_subject(engine)], Budget(max_scenarios=most), seed=2, device=CPU)
    finding = next(found for found in report.findings if found.contract == contract)
    assert len(finding.scenario.requests) <= 2
    assert list(problems(finding.scenario)) == []


def test_the_same_traffic_gives_the_same_trace() -> None:
    traffic = Traffic((Arrival(), Arrival(1)), token_budget=4, num_blocks=4, long_prefill_token_threshold=3)
    requests = (Request("a", "token_embed", (1,) * 7), Request("b", "embed", (1,) * 5))
    scenario = Scenario(requests, (), Options(level="engine"), traffic)
    traces = []
    for _ in range(2):
        run = start(World(scenario, CPU), engine_subject())
        assert isinstance(run, EngineRun)
        assert run.all_steps().verdict.value == "holds"
        traces.append([(step.spans, step.preempted) for step in run.trace])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 3


def test_the_mix_of_engines_is_theirs() -> None:
    mix = for_subjects([engine_subject()])
    assert mix.levels == ("engine",)
