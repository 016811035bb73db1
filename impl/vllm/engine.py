"""`vllm-v1` and `vllm-v2`: vLLM's own scheduler and runners, with the model's forward replaced.

Real: `Scheduler` with its KV cache manager, `InputBatch`, the V1 runner's `_update_states` and `_pool`,
the V2 `PoolingRunner`, `DispatchPooler` with its methods, all on a CPU. Stood in for:

- the model: `forward` gives rows that say whose they are, so no layer is computed and no KV cache is filled;
- V1 `_prepare_inputs`: the lengths and offsets that pooling reads are written as it writes them;
- V2 `RequestState` and `InputBatch`, which need pinned memory: plain objects with the fields that pooling
  reads, and the order of calls of `GPUModelRunner.finish_requests` and `add_requests`;
- async scheduling: its events need a CUDA device, so only the pooler is told of it and must own its outputs;
- request intake: `skip_reading_prefix_cache` is set as `PoolingParams.verify` sets it.
"""

import atexit
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from impl.config import PoolerConfig, Subject, SubjectError
from impl.engine import EngineConfig, EngineRequest, EngineStep, Observer, Span
from impl.vllm.installed import Installed
from impl.vllm.layer import layer

MAX_MODEL_LEN = 2048
MODEL_CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
"intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
"vocab_size": 256, "max_position_embeddings": 2048, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}"""


def subject(runner: str) -> Subject:
    """The installed vLLM's engine with its V1 or V2 runner.

    Raises:
        SubjectError: vLLM is not installed, or lacks a class that is driven here.
    """
    try:
        parts = _Parts()
    except (ImportError, AttributeError) as error:
        raise SubjectError(
            f"vllm-{runner} drives vLLM's scheduler and runner, which can't be had here: {error}. "
            "`tox -e vllm` makes an environment that has them"
        ) from error
    engine = {"v1": EngineV1, "v2": EngineV2}[runner]

    def build(config: PoolerConfig, engine_config: EngineConfig, observer: Observer) -> _Engine:
        return engine(parts, config, engine_config, observer)

    return Subject(
        name=f"vllm-{runner} {parts.version}",
        build=parts.layer.build,
        supports=frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN")),
        rows=("group",),
        levels=("engine",),
        api=parts.layer.api,
        build_engine=build,
        about=f"the installed scheduler with the {runner.upper()} runner",
        spec=f"vllm-{runner}",
        version=parts.version,
    )


class _Parts:
    """vLLM's classes, imported once, and what can be shared between engines."""

    def __init__(self) -> None:
        installed = Installed()
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request, RequestStatus
        from vllm.v1.structured_output import StructuredOutputManager

        self.version = installed.version
        self.layer = layer(installed)
        self.CacheConfig = CacheConfig
        self.SchedulerConfig = SchedulerConfig
        self.VllmConfig = VllmConfig
        self.use_config = set_current_vllm_config
        self.Scheduler = Scheduler
        self.Request = Request
        self.RequestStatus = RequestStatus
        self.ModelRunnerOutput = ModelRunnerOutput
        self.StructuredOutputManager = StructuredOutputManager
        self.FullAttentionSpec = FullAttentionSpec
        self.KVCacheConfig = KVCacheConfig
        self.KVCacheGroupSpec = KVCacheGroupSpec
        self.block_hasher: Callable[[int], Any] = partial(get_request_block_hasher, caching_hash_fn=sha256)
        init_none_hash(sha256)
        # Needed as long as the process lives: an object that cleans up would do so, with a warning, too soon or late.
        self._directory = Path(tempfile.mkdtemp(prefix="poolproof-model-"))
        atexit.register(shutil.rmtree, self._directory, ignore_errors=True)
        (self._directory / "config.json").write_text(MODEL_CONFIG)
        self.model_config = ModelConfig(
            model=str(self._directory),
            runner="pooling",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
        )
        self._configs: dict[tuple[bool, EngineConfig], Any] = {}
        self._is_distributed = False

    def vllm_config(self, config: PoolerConfig, engine: EngineConfig) -> Any:
        """The config of such an engine, in vLLM's own classes; made once, for it takes longer than a run."""
        key = (config.enable_chunked_prefill, engine)
        if key not in self._configs:
            self._configs[key] = self._new_vllm_config(config, engine)
        return self._configs[key]

    def _new_vllm_config(self, config: PoolerConfig, engine: EngineConfig) -> Any:
        scheduler_config = self.SchedulerConfig(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=MAX_MODEL_LEN,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy="priority" if engine.priority_policy else "fcfs",
        )
        cache_config = self.CacheConfig(block_size=engine.block_size, enable_prefix_caching=engine.prefix_caching)
        cache_config.num_gpu_blocks = engine.num_blocks
        made = self.VllmConfig(
            model_config=self.model_config, scheduler_config=scheduler_config, cache_config=cache_config
        )
        # Construction overrules these on a CPU, or for a model that it can't look into.
        made.scheduler_config.async_scheduling = False
        made.scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
        made.scheduler_config.max_num_batched_tokens = engine.token_budget
        made.scheduler_config.long_prefill_token_threshold = engine.long_prefill_token_threshold
        made.cache_config.block_size = engine.block_size
        made.cache_config.enable_prefix_caching = engine.prefix_caching
        return made

    def join_world_of_one(self, vllm_config: Any) -> None:
        """Set up the process groups that a runner asks for, of this process alone."""
        if self._is_distributed:
            return
        from vllm.distributed import init_distributed_environment, initialize_model_parallel

        with self.use_config(vllm_config):
            init_distributed_environment(
                world_size=1,
                rank=0,
                local_rank=0,
                distributed_init_method=f"file://{self._directory}/rendezvous",
                backend="gloo",
            )
            initialize_model_parallel(1, 1)
        self._is_distributed = True


class _ObservedPooler(torch.nn.Module):
    """The pooler, with the observer told before and after each call."""

    def __init__(self, pooler: Any, observer: Observer) -> None:
        super().__init__()
        self.pooler = pooler
        self.observer = observer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("pooler"), name)

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> Any:
        self.observer.before_pooling(hidden_states, pooling_metadata)
        outputs = self.pooler(hidden_states, pooling_metadata)
        self.observer.after_pooling(hidden_states, pooling_metadata, outputs)
        return outputs


class _Model(torch.nn.Module):
    """All that a runner needs of a pooling model: that it is one, and its pooler."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any = None, prefix: str = "", pooler: Any = None) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, input_ids: Any, positions: Any) -> None:
        """Named for vLLM's check of the interface; the harness computes the rows."""

    def embed_input_ids(self, input_ids: Any) -> None:
        """See `forward`."""


class _Engine(ABC):
    """What both runners share: the scheduler and the requests."""

    def __init__(self, parts: _Parts, config: PoolerConfig, engine_config: EngineConfig, observer: Observer) -> None:
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
                        block_size=engine_config.block_size, num_kv_heads=1, head_size=8, dtype=torch.float32
                    ),
                )
            ],
        )
        self.kv_cache_config = kv_cache
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
        self.model = _Model(pooler=_ObservedPooler(pooler, observer))
        self.prompts: dict[str, tuple[int, ...]] = {}

    def add(self, request: EngineRequest) -> None:
        """See `Engine.add`."""
        params = self.parts.layer.api.PoolingParams(**request.params)
        params.skip_reading_prefix_cache = params.task in ("token_embed", "token_classify")
        self.prompts[request.name] = request.prompt_token_ids
        self.scheduler.add_request(
            self.parts.Request(
                request_id=request.name,
                prompt_token_ids=list(request.prompt_token_ids),
                sampling_params=None,
                pooling_params=params,
                priority=request.priority,
                # Ties of the priority policy are broken by arrival, which may not be the clock's here.
                arrival_time=float(len(self.prompts)),
                block_hasher=self.parts.block_hasher(self.engine_config.block_size),
            )
        )

    def abort(self, name: str) -> None:
        """See `Engine.abort`."""
        self.scheduler.finish_requests(name, self.parts.RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(self) -> None:
        """See `Engine.reset_prefix_cache`."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def unfinished(self) -> Sequence[str]:
        """See `Engine.unfinished`."""
        return [name for name, request in self.scheduler.requests.items() if not request.is_finished()]

    def step(self) -> EngineStep:
        """See `Engine.step`."""
        scheduled = self.scheduler.schedule()
        spans, runner_output, slot_problems = self._compute(scheduled)
        outputs: dict[str, list[torch.Tensor | None]] = {}
        for client in self.scheduler.update_from_output(scheduled, runner_output).values():
            for output in client.outputs:
                if output.pooling_output is not None or output.finish_reason is not None:
                    outputs.setdefault(output.request_id, []).append(output.pooling_output)
        return EngineStep(
            spans=tuple(spans),
            preempted=tuple(sorted(scheduled.preempted_req_ids or ())),
            resumed=tuple(sorted(scheduled.scheduled_cached_reqs.resumed_req_ids)),
            slot_problems=tuple(slot_problems),
            outputs=outputs,
        )

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
        return self.parts.ModelRunnerOutput(req_ids=[], req_id_to_index={})

    @abstractmethod
    def _compute(self, scheduled: Any) -> tuple[list[Span], Any, list[str]]:
        """Update the batch, make the rows, pool: spans, the runner's output, and slots that are mixed up."""

    @abstractmethod
    def _runner_leftovers(self) -> list[str]:
        """Per-request state that the runner still has, in words."""


class EngineV1(_Engine):
    """With the V1 runner: its persistent batch keeps requests over steps and closes gaps."""

    def __init__(self, parts: _Parts, *arguments: Any) -> None:
        super().__init__(parts, *arguments)
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        parts.join_world_of_one(self.vllm_config)
        with parts.use_config(self.vllm_config):
            self.runner = CPUModelRunner(self.vllm_config, torch.device("cpu"))
        self.runner.model = self.model
        self.runner.kv_cache_config = self.kv_cache_config

    def _compute(self, scheduled: Any) -> tuple[list[Span], Any, list[str]]:
        runner = self.runner
        runner._update_states(scheduled)
        batch = runner.input_batch
        names = list(batch.req_ids)
        if not names:
            return [], self._nothing(), []
        counts = np.array([scheduled.num_scheduled_tokens[name] for name in names], dtype=np.int32)
        computed = batch.num_computed_tokens_cpu[: len(names)]
        spans = [Span(*part) for part in zip(names, computed.tolist(), counts.tolist(), strict=True)]
        # What _prepare_inputs writes and pooling reads.
        runner.optimistic_seq_lens_cpu[: len(names)] = torch.from_numpy(computed + counts)
        runner.query_start_loc.np[: len(names) + 1] = np.concatenate([[0], np.cumsum(counts)])
        runner.query_start_loc.copy_to_gpu()
        output = runner._pool(
            hidden_states=self.observer.forward(spans),
            num_scheduled_tokens=int(counts.sum()),
            num_scheduled_tokens_np=counts,
            kv_connector_output=None,
        )
        return spans, output, self._slot_problems(names)

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
            *(f"the batch still holds pooling states of request {name}" for name in batch.pooling_states),
            *(f"the batch still holds pooling params of request {name}" for name in batch.pooling_params),
        ]


class EngineV2(_Engine):
    """With the V2 pooling runner: a request has a slot while it runs, and gives it up when preempted."""

    def __init__(self, parts: _Parts, *arguments: Any) -> None:
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
        output = self.parts.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            pooler_output=[rows if done else None for rows, done in zip(outputs, finished, strict=True)],
        )
        return spans, output, []

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
