"""`vllm-v1` and `vllm-v2`: vLLM's own scheduler and runners, with the model's forward replaced.

Real: `Scheduler` with its KV cache manager, `InputBatch`, the V1 runner's `_update_states` and `_pool`,
the V2 `PoolingRunner`, their `LateInteractionRunner`, `DispatchPooler` with its methods, all on a CPU. Stood in for:

- the model: `forward` gives rows that say whose they are, so no layer is computed and no KV cache is filled;
- V1 `_prepare_inputs`: the lengths and offsets that pooling reads are written as it writes them;
- V2 `RequestState` and `InputBatch`, which need pinned memory: plain objects with the fields that pooling
  reads, and the order of calls of `GPUModelRunner.finish_requests` and `add_requests`;
- async scheduling: its events need a CUDA device, so only the pooler is told of it and must own its outputs;
- the platform: vLLM is told to take the CPU, which it does by itself for a build for CPUs, and from 0.28 if asked;
- poolers until 0.13, see `impl.vllm.older`;
- configs: made once and changed in copies, for construction overrules much of them on a CPU;
- request intake: `skip_reading_prefix_cache` is set as `PoolingParams.verify` sets it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from impl.config import PoolerConfig, Subject, SubjectError
from impl.engine import EngineConfig, EngineRequest, EngineStep, Observer, Span
from impl.vllm.fetch import whole_release
from impl.vllm.older import OwnPooler, whole
from impl.vllm.parts import Parts, PoolingModel, accepting, parts


def subject(spec: str) -> Subject:
    """An engine with its V1 or V2 runner: the installed vLLM's, that of `vllm-v1@DIR` or of `vllm-v1==X.Y.Z`.

    Raises:
        SubjectError: vLLM is not installed or not in that directory, or lacks a class that is driven here.
    """
    runner, rest = spec.removeprefix("vllm-")[:2], spec.removeprefix("vllm-")[2:]
    directory = None
    if rest.startswith("=="):
        directory = whole_release(rest.removeprefix("=="))
    elif rest:
        directory = Path(rest.removeprefix("@")).expanduser()
    try:
        found = parts(directory)
    except (ImportError, AttributeError) as error:
        raise SubjectError(
            f"{spec} drives vLLM's scheduler and runner, which can't be had here: {error}. "
            "`tox -e vllm` and `tox -e vllm-old` make environments that have what they import"
        ) from error
    if runner == "v2" and not _drives_v2():
        raise SubjectError(
            f"{spec}: the V2 runner of vLLM {found.version} keeps no pooling states and can't be driven here; "
            "give a release from 0.28.0, or vllm-v1"
        )
    engine = {"v1": EngineV1, "v2": EngineV2}[runner]

    def build(config: PoolerConfig, engine_config: EngineConfig, observer: Observer) -> _Engine:
        return engine(found, config, engine_config, observer)

    return Subject(
        name=f"vllm-{runner} {found.version}" if found.version else spec,
        build=found.layer.build,
        supports=frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN")),
        rows=("group",),
        levels=("engine",),
        api=found.layer.api,
        build_engine=build,
        about=f"the scheduler with the {runner.upper()} runner",
        spec=spec,
        lacks=found.layer.lacks(),
        product=f"vllm-{runner}",
        version=found.version,
    )


def _drives_v2() -> bool:
    """Whether there is a V2 pooling runner of the kind that is driven."""
    try:
        from vllm.v1.worker.gpu.pool.pooling_runner import PoolingRunner
    except ImportError:
        return False
    return hasattr(PoolingRunner, "remove_request")


class _ObservedPooler(torch.nn.Module):
    """The pooler, with the observer told before and after each call."""

    def __init__(self, pooler: Any, engine: "_Engine") -> None:
        super().__init__()
        self.pooler = pooler
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "pooler":
                raise
            return getattr(self.pooler, name)

    def forward(self, hidden_states: Any, pooling_metadata: Any) -> Any:
        observer, seen = self.engine.observer, self.engine.seen(pooling_metadata)
        if not isinstance(hidden_states, torch.Tensor):
            # Until 0.10.1 each request's rows came apart.
            hidden_states = torch.cat(hidden_states)
        observer.before_pooling(hidden_states, seen)
        outputs = self.pooler(hidden_states, seen if isinstance(self.pooler, OwnPooler) else pooling_metadata)
        observer.after_pooling(hidden_states, seen, outputs)
        return outputs


class _Engine(ABC):
    """What both runners share: the scheduler and the requests."""

    runner: Any

    def __init__(self, parts: Parts, config: PoolerConfig, engine_config: EngineConfig, observer: Observer) -> None:
        self.parts = parts
        self.engine_config = engine_config
        self.observer = observer
        self.vllm_config = parts.vllm_config(config, engine_config)
        kv_cache = parts.KVCacheConfig(
            num_blocks=engine_config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                parts.KVCacheGroupSpec(
                    ["layer"],
                    parts.FullAttentionSpec(
                        block_size=engine_config.block_size,
                        num_kv_heads=1,
                        head_size=8,
                        dtype=torch.float32,
                        use_mla=False,
                    ),
                )
            ],
        )
        with parts.use_config(self.vllm_config):
            self.scheduler = parts.Scheduler(
                vllm_config=self.vllm_config,
                kv_cache_config=kv_cache,
                structured_output_manager=parts.StructuredOutputManager(self.vllm_config),
                block_size=engine_config.block_size,
                log_stats=False,
            )
        self.free_blocks_at_start = self._free_blocks()
        pooler = parts.layer.build(config, "pooler")
        self.model = PoolingModel(pooler=_ObservedPooler(pooler, self))
        self.prompts: dict[str, tuple[int, ...]] = {}

    def add(self, request: EngineRequest) -> None:
        """See `Engine.add`."""
        params = self.parts.layer.api.PoolingParams(**request.params)
        if hasattr(params, "skip_reading_prefix_cache"):
            params.skip_reading_prefix_cache = params.task in ("token_embed", "token_classify")
        self.prompts[request.name] = request.prompt_token_ids
        self.scheduler.add_request(
            self.parts.Request(
                request_id=request.name,
                prompt_token_ids=list(request.prompt_token_ids),
                multi_modal_kwargs=None,
                multi_modal_hashes=None,
                multi_modal_placeholders=None,
                sampling_params=None,
                pooling_params=params,
                priority=request.priority,
                # Ties of the priority policy are broken by arrival, which may not be the clock's here.
                arrival_time=float(len(self.prompts)),
                eos_token_id=None,
                block_hasher=self.parts.block_hasher(self.engine_config.block_size),
            )
        )

    def abort(self, name: str) -> None:
        """See `Engine.abort`."""
        self.scheduler.finish_requests(name, self.parts.RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(self) -> None:
        """See `Engine.reset_prefix_cache`."""
        accepting(self.scheduler.reset_prefix_cache)(reset_running_requests=True)

    def release(self, query: str) -> None:
        """See `Engine.release`; until 0.31 nobody was told that a client had gone."""
        if hasattr(self.runner, "release_late_interaction_query_cache"):
            self.runner.release_late_interaction_query_cache([query])

    def kept(self) -> Any:
        """See `Engine.kept`."""
        return getattr(self.runner, "late_interaction_runner", {})

    def unfinished(self) -> Sequence[str]:
        """See `Engine.unfinished`."""
        return [name for name, request in self.scheduler.requests.items() if not request.is_finished()]

    def step(self) -> EngineStep:
        """See `Engine.step`."""
        running = [request.request_id for request in self.scheduler.running]
        scheduled = self.scheduler.schedule()
        spans, runner_output, slot_problems = self._compute(scheduled)
        if slot_problems:
            return EngineStep(tuple(spans), slot_problems=tuple(slot_problems))
        outputs: dict[str, list[torch.Tensor | None]] = {}
        for client in self.scheduler.update_from_output(scheduled, runner_output).values():
            for output in client.outputs:
                if output.pooling_output is not None or output.finish_reason is not None:
                    outputs.setdefault(output.request_id, []).append(output.pooling_output)
        return EngineStep(
            spans=tuple(spans),
            preempted=tuple(sorted(self._preempted(scheduled, running))),
            resumed=tuple(sorted(_resumed(scheduled.scheduled_cached_reqs))),
            rewritten=tuple(self._rewritten()),
            outputs=outputs,
        )

    def _rewritten(self) -> Sequence[str]:
        """What the step before handed to the scheduler and this one has changed since, in words."""
        return ()

    def _preempted(self, scheduled: Any, ran_before: Sequence[str]) -> Sequence[str]:
        """Who lost its place; until 0.12 only the scheduler itself knew."""
        if hasattr(scheduled, "preempted_req_ids"):
            return tuple(scheduled.preempted_req_ids or ())
        run_now = {request.request_id for request in self.scheduler.running}
        return [name for name in ran_before if name in self.scheduler.requests and name not in run_now]

    def seen(self, pooling_metadata: Any) -> Any:
        """What the observer is shown of the runner's metadata."""
        return pooling_metadata

    def leftovers(self) -> Sequence[str]:
        """See `Engine.leftovers`."""
        left = [f"the scheduler still knows request {name}" for name in self.scheduler.requests]
        missing = self.free_blocks_at_start - self._free_blocks()
        if missing:
            left.append(f"{missing} KV cache blocks are not free again")
        return [*left, *self._runner_leftovers()]

    def _free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _nothing(self) -> Any:
        return self._output([], [])

    def _output(self, names: Sequence[str], pooled: Sequence[torch.Tensor | None]) -> Any:
        return self.parts.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[],
            spec_token_ids=None,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=pooled,
        )

    @abstractmethod
    def _compute(self, scheduled: Any) -> tuple[list[Span], Any, list[str]]:
        """Update the batch, make the rows, pool: spans, the runner's output, and slots that are mixed up."""

    @abstractmethod
    def _runner_leftovers(self) -> list[str]:
        """Per-request state that the runner still has, in words."""


def _resumed(cached: Any) -> Sequence[str]:
    """Who is computed anew after a preemption; until 0.10 a list of flags."""
    if hasattr(cached, "resumed_req_ids"):
        return tuple(cached.resumed_req_ids)
    return [name for name, flag in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if flag]


class EngineV1(_Engine):
    """With the V1 runner: its persistent batch keeps requests over steps and closes gaps."""

    def __init__(self, parts: Parts, *arguments: Any) -> None:
        super().__init__(parts, *arguments)
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        parts.join_world_of_one(self.vllm_config)
        with parts.use_config(self.vllm_config):
            self.runner = CPUModelRunner(self.vllm_config, torch.device("cpu"))
        self._pool = accepting(self.runner._pool)
        self.runner.model = self.model
        # Without groups no attention backend reorders the batch, as none does where nobody decodes.
        self.runner.kv_cache_config = parts.KVCacheConfig(
            num_blocks=self.engine_config.num_blocks, kv_cache_tensors=[], kv_cache_groups=[]
        )
        self._counts = np.zeros(0, dtype=np.int32)
        self._last: tuple[Any, list[str], dict[str, int]] | None = None
        """What the step before handed out, and what it said then."""
        self._told: list[str] = []

    def _compute(self, scheduled: Any) -> tuple[list[Span], Any, list[str]]:
        runner = self.runner
        runner._update_states(scheduled)
        self._told = self._changes()
        batch = runner.input_batch
        names = list(batch.req_ids)
        if not names:
            return [], self._nothing(), []
        holes = [
            f"slot {slot} is empty, though the batch reaches beyond it" for slot, name in enumerate(names) if not name
        ]
        if holes:
            return [], self._nothing(), holes
        counts = np.array([scheduled.num_scheduled_tokens[name] for name in names], dtype=np.int32)
        computed = batch.num_computed_tokens_cpu[: len(names)]
        spans = [Span(*part) for part in zip(names, computed.tolist(), counts.tolist(), strict=True)]
        # What _prepare_inputs writes and pooling reads.
        self._seq_lens()[: len(names)] = torch.from_numpy(computed + counts)
        if hasattr(runner.query_start_loc, "np"):
            runner.query_start_loc.np[: len(names) + 1] = np.concatenate([[0], np.cumsum(counts)])
            runner.query_start_loc.copy_to_gpu()
        self._counts = counts
        output = self._pool(
            hidden_states=self.observer.forward(spans),
            num_scheduled_tokens=int(counts.sum()),
            num_scheduled_tokens_np=counts,
            kv_connector_output=None,
        )
        self._last = output, list(output.req_ids), dict(output.req_id_to_index)
        return spans, output, self._slot_problems(names)

    def _rewritten(self) -> Sequence[str]:
        """See `_Engine._rewritten`."""
        return self._told

    def _changes(self) -> list[str]:
        if self._last is None:
            return []
        output, names, places = self._last
        told = []
        if list(output.req_ids) != names:
            told.append(f"a step's results were those of {names}, but became those of {list(output.req_ids)}")
        elif output.req_id_to_index != places:
            told.append(f"a step's results were looked up by {places}, but then by {output.req_id_to_index}")
        self._last = None
        return told

    def seen(self, pooling_metadata: Any) -> Any:
        """See `_Engine.seen`."""
        return whole(pooling_metadata, self._counts, self._seq_lens()[: len(self._counts)])

    def _seq_lens(self) -> torch.Tensor:
        """Where pooling reads how far requests have come; until 0.18 the host half of a buffer, and before a tensor."""
        runner = self.runner
        lens: Any = runner.optimistic_seq_lens_cpu if hasattr(runner, "optimistic_seq_lens_cpu") else runner.seq_lens
        host: torch.Tensor = lens if isinstance(lens, torch.Tensor) else lens.cpu
        return host

    def _slot_problems(self, names: Sequence[str]) -> list[str]:
        batch = self.runner.input_batch
        problems = []
        for slot, name in enumerate(names):
            prompt = self.prompts[name]
            if batch.num_prompt_tokens[slot] != len(prompt):
                problems.append(f"slot {slot} of request {name} has prompt length {batch.num_prompt_tokens[slot]}")
            if batch.token_ids_cpu[slot, : len(prompt)].tolist() != list(prompt):
                problems.append(f"slot {slot} of request {name} has another request's token ids")
            if batch.req_id_to_index[name] != slot:
                problems.append(f"request {name} is in slot {slot} but is looked up in {batch.req_id_to_index[name]}")
        return problems

    def _runner_leftovers(self) -> list[str]:
        batch = self.runner.input_batch
        return [
            *(f"the runner still knows request {name}" for name in self.runner.requests),
            *(f"the batch still holds request {name}" for name in batch.req_id_to_index),
            *(
                f"the batch still holds pooling states of request {name}"
                for name in getattr(batch, "pooling_states", ())
            ),
            *(f"the batch still holds pooling params of request {name}" for name in batch.pooling_params),
        ]


class EngineV2(_Engine):
    """With the V2 pooling runner: a request has a slot while it runs, and gives it up when preempted."""

    def __init__(self, parts: Parts, *arguments: Any) -> None:
        super().__init__(parts, *arguments)
        from vllm.v1.worker.gpu.pool.pooling_runner import PoolingRunner

        # The scheduler then hands resumed requests over as new ones.
        self.scheduler.use_v2_model_runner = True
        with parts.use_config(self.vllm_config):
            self.runner = PoolingRunner(self.model, self.vllm_config)
        self.slots: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.request_state = SimpleNamespace(
            prompt_len=SimpleNamespace(np=np.zeros(self.engine_config.max_num_seqs, dtype=np.int32))
        )

    def _compute(self, scheduled: Any) -> tuple[list[Span], Any, list[str]]:
        self._update_slots(scheduled)
        counts_by_name = scheduled.num_scheduled_tokens
        # The V2 batch is sorted by count, fewest first.
        names = sorted(counts_by_name, key=counts_by_name.__getitem__)
        if not names:
            return [], self._nothing(), []
        counts = np.array([counts_by_name[name] for name in names], dtype=np.int32)
        computed = np.array([self.computed[name] for name in names], dtype=np.int32)
        spans = [Span(*part) for part in zip(names, computed.tolist(), counts.tolist(), strict=True)]
        batch = SimpleNamespace(
            req_ids=names,
            num_reqs=len(names),
            idx_mapping_np=np.array([self.slots[name] for name in names]),
            num_scheduled_tokens=counts,
            num_tokens=int(counts.sum()),
            seq_lens_cpu_upper_bound=torch.from_numpy(computed + counts),
            query_start_loc=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
        )
        outputs, finished = self.runner.pool(self.observer.forward(spans), batch, self.request_state)
        pooled = [rows if done else None for rows, done in zip(outputs, finished, strict=True)]
        return spans, self._output(names, pooled), []

    def _update_slots(self, scheduled: Any) -> None:
        self.runner.on_requests_finished(scheduled.finished_req_ids)
        for name in sorted({*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())}):
            if name in self.slots:
                self.runner.remove_request(self.slots.pop(name))
        for new in scheduled.scheduled_new_reqs:
            slot = min(set(range(self.engine_config.max_num_seqs)) - set(self.slots.values()))
            self.slots[new.req_id] = slot
            self.computed[new.req_id] = new.num_computed_tokens
            self.request_state.prompt_len.np[slot] = len(new.prompt_token_ids)
            self.runner.add_request(new.req_id, slot, new.pooling_params, new.prompt_token_ids)
        cached = scheduled.scheduled_cached_reqs
        self.computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    def _runner_leftovers(self) -> list[str]:
        kept = {
            "pooling params": self.runner.pooling_params,
            "pooling states": self.runner.pooling_states,
            "prompt token ids": self.runner.prompt_token_ids,
        }
        return [f"the runner still holds {what} in slot {slot}" for what, held in kept.items() for slot in held]
