"""An engine over the scheduler model and a right pooler, into which faults can be put."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fuzz.traffic import Queued, SchedulerModel
from impl.config import PARTS, PoolerConfig, Subject
from impl.engine import EngineConfig, EngineRequest, EngineStep, Observer, Span
from impl.hostsplit import HostSplit
from impl.late_interaction import MaxSim
from impl.pooler import Pooler
from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates
from oracle.scenario import Arrival, Options, Request, Traffic


class FakeEngine:
    """Right; a subclass overrides the one thing that it does wrong."""

    def __init__(self, config: PoolerConfig, engine_config: EngineConfig, observer: Observer) -> None:
        traffic = Traffic(
            (),
            engine_config.token_budget,
            engine_config.max_num_seqs,
            engine_config.max_model_len,
            engine_config.num_blocks,
            engine_config.block_size,
            engine_config.long_prefill_token_threshold,
            priority_policy=engine_config.priority_policy,
        )
        self.model = SchedulerModel(traffic, Options(enable_chunked_prefill=config.enable_chunked_prefill))
        self.observer = observer
        self.pooler = Pooler(config, HostSplit(config))
        self.requests: dict[str, EngineRequest] = {}
        self.states: dict[str, PoolingStates] = {}
        self.computed: dict[str, int] = {}
        self.preempted_by_reset: list[str] = []
        self.scorer = MaxSim()

    def add(self, request: EngineRequest) -> None:
        self.requests[request.name] = request
        self.states[request.name] = PoolingStates()
        self.computed[request.name] = 0
        plain = Request(request.name, request.params["task"], request.prompt_token_ids)
        self.model.add([Queued(plain, Arrival(priority=request.priority), cached=0)])

    def abort(self, name: str) -> None:
        for queue in (self.model.running, self.model.waiting):
            queue[:] = [entry for entry in queue if entry.request.name != name]
        self.preempted_by_reset = [other for other in self.preempted_by_reset if other != name]
        self.scorer.gone([name])
        self.forget(name)

    def release(self, query: str) -> None:
        self.scorer.release([query])

    def kept(self) -> MaxSim:
        return self.scorer

    def reset_prefix_cache(self) -> None:
        self.preempted_by_reset = self.model.reset()

    def unfinished(self) -> Sequence[str]:
        return list(self.requests)

    def leftovers(self) -> Sequence[str]:
        return [f"the engine still holds the state of request {name}" for name in self.states]

    def step(self) -> EngineStep:
        scheduled, pushed_out = self.model.schedule()
        preempted = [*self.preempted_by_reset, *pushed_out]
        self.preempted_by_reset = []
        for name in preempted:
            self.restart(name)
        spans = [Span(name, self.computed[name], count) for name, count in scheduled]
        if not spans:
            return EngineStep((), tuple(preempted))
        outputs = self.pool(spans)
        return EngineStep(tuple(spans), tuple(preempted), outputs=self.answers(spans, outputs))

    def pool(self, spans: Sequence[Span]) -> Sequence[torch.Tensor | None]:
        requests = [self.requests[span.name] for span in spans]
        longest = max(len(request.prompt_token_ids) for request in requests)
        ids = torch.tensor([[*r.prompt_token_ids, *[0] * (longest - len(r.prompt_token_ids))] for r in requests])
        metadata = PoolingMetadata(
            torch.tensor([len(request.prompt_token_ids) for request in requests]),
            ids,
            ids,
            [PoolingParams(**request.params) for request in requests],
            [self.states[span.name] for span in spans],
        )
        seq_lens = torch.tensor([span.start + span.count for span in spans])
        metadata.build_pooling_cursor(np.array([span.count for span in spans]), seq_lens, torch.device("cpu"))
        hidden_states = self.observer.forward(spans)
        self.observer.before_pooling(hidden_states, metadata)
        outputs = self.pooler(hidden_states, metadata)
        self.observer.after_pooling(hidden_states, metadata, outputs)
        names = [span.name for span in spans]
        for name, params in zip(names, metadata.pooling_params, strict=True):
            self.scorer.register(name, params)
        finished = [span.start + span.count == len(self.requests[span.name].prompt_token_ids) for span in spans]
        return list(self.scorer.score(outputs, metadata.pooling_params, names, finished))

    def answers(
        self, spans: Sequence[Span], outputs: Sequence[torch.Tensor | None]
    ) -> Mapping[str, Sequence[torch.Tensor | None]]:
        answered: dict[str, list[torch.Tensor | None]] = {}
        for span, rows in zip(spans, outputs, strict=True):
            self.computed[span.name] = span.start + span.count
            if self.computed[span.name] == len(self.requests[span.name].prompt_token_ids):
                answered[span.name] = [rows]
                self.forget(span.name)
        return answered

    def restart(self, name: str) -> None:
        self.computed[name] = 0
        self.states[name].clean()

    def forget(self, name: str) -> None:
        for held in (self.requests, self.states, self.computed):
            held.pop(name, None)


def engine_subject(engine: Callable[[Any, EngineConfig, Observer], FakeEngine] = FakeEngine) -> Subject:
    """A subject at level engine."""
    return Subject(
        name="fake engine",
        build=lambda config, level: Pooler(config, HostSplit(config)),
        supports=frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN")),
        levels=("engine",),
        build_engine=engine,
        lacks=PARTS - {"late-interaction"},
    )
