"""The engine classes of a vLLM, imported once a process, and the configs that engines share.

What changed from release to release is read off signatures and fields, as in `impl.vllm.adapter`.
"""

import atexit
import copy
import importlib
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Final

import torch

from impl.config import PoolerConfig
from impl.engine import EngineConfig
from impl.vllm.installed import Installed
from impl.vllm.older import layer_of_engine

MODEL_CONFIG: Final = """{"architectures": ["PoolingModel"], "model_type": "llama", "hidden_size": 64,
"intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
"vocab_size": 256, "max_position_embeddings": 2048, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}"""
MAX_MODEL_LEN: Final = 2048


class PoolingModel(torch.nn.Module):
    """All that a runner needs of a pooling model: that it is one, and its pooler."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any = None, prefix: str = "", pooler: Any = None) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, input_ids: Any, positions: Any) -> None:
        """Named for vLLM's check of the interface; the harness computes the rows."""

    def embed_input_ids(self, input_ids: Any) -> None:
        """See `forward`."""


@cache
def parts(directory: Path | None = None) -> "Parts":
    """The engine classes of the installed vLLM, or of the one in a directory.

    Raises:
        SubjectError: it is not there, or another one is in this process.
        ImportError, AttributeError: it lacks a class that is driven.
    """
    return Parts(Installed(directory))


class Parts:
    """The classes, and what can be shared between engines."""

    def __init__(self, installed: Installed) -> None:
        _take_a_cpu()
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
        from vllm.model_executor.models.registry import ModelRegistry
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request, RequestStatus
        from vllm.v1.structured_output import StructuredOutputManager

        self.version = installed.version
        self.layer = layer_of_engine(installed)
        self.use_config = set_current_vllm_config
        self.Scheduler = accepting(Scheduler)
        self.Request = accepting(Request)
        self.RequestStatus = RequestStatus
        self.ModelRunnerOutput = accepting(ModelRunnerOutput)
        self.StructuredOutputManager = StructuredOutputManager
        self.FullAttentionSpec = accepting(FullAttentionSpec)
        self.KVCacheConfig = accepting(KVCacheConfig)
        self.KVCacheGroupSpec = KVCacheGroupSpec
        sha256 = _sha256()
        self.block_hasher: Callable[[int], Any] = cache(partial(get_request_block_hasher, caching_hash_fn=sha256))
        init_none_hash(sha256)
        # Needed as long as the process lives: an object that cleans up would do so, with a warning, too soon or late.
        self._directory = Path(tempfile.mkdtemp(prefix="poolproof-model-"))
        atexit.register(shutil.rmtree, self._directory, ignore_errors=True)
        (self._directory / "config.json").write_text(MODEL_CONFIG)
        ModelRegistry.register_model("PoolingModel", PoolingModel)
        self._base = VllmConfig(
            model_config=ModelConfig(
                model=str(self._directory),
                runner="pooling",
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=MAX_MODEL_LEN,
            ),
            scheduler_config=accepting(SchedulerConfig)(
                max_num_batched_tokens=MAX_MODEL_LEN, max_model_len=MAX_MODEL_LEN, is_encoder_decoder=False
            ),
            cache_config=accepting(CacheConfig)(block_size=16, swap_space=0),
        )
        self._is_distributed = False

    def vllm_config(self, config: PoolerConfig, engine: EngineConfig) -> Any:
        """The config of such an engine, in vLLM's own classes.

        It is a changed copy, for construction takes longer than a run, and overrules some of these on a CPU
        or for a model that it can't look into.
        """
        made = copy.copy(self._base)
        made.model_config = _changed(made.model_config, max_model_len=engine.max_model_len)
        made.scheduler_config = _changed(
            made.scheduler_config,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.token_budget,
            max_model_len=engine.max_model_len,
            enable_chunked_prefill=config.enable_chunked_prefill,
            chunked_prefill_enabled=config.enable_chunked_prefill,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            policy="priority" if engine.priority_policy else "fcfs",
            async_scheduling=False,
        )
        made.cache_config = _changed(
            made.cache_config,
            block_size=engine.block_size,
            num_gpu_blocks=engine.num_blocks,
            enable_prefix_caching=engine.prefix_caching,
        )
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


def accepting(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, less the keyword arguments that this release does not take."""
    taken = signature(call).parameters

    def with_those_taken(**given: Any) -> Any:
        return call(**{name: value for name, value in given.items() if name in taken})

    return with_those_taken


def _changed(config: Any, **fields: Any) -> Any:
    """A copy with other values in the fields that this release has."""
    changed = copy.copy(config)
    for name, value in fields.items():
        if hasattr(config, name):
            setattr(changed, name, value)
    return changed


def _take_a_cpu() -> None:
    """Have vLLM take the CPU for its platform, as it does by itself for a build for CPUs."""
    import vllm.platforms

    vllm.platforms.resolve_current_platform_cls_qualname = lambda: "vllm.platforms.cpu.CpuPlatform"


def _sha256() -> Any:
    """The hash of a block of tokens."""
    hashing = "vllm.utils.hashing" if find_spec("vllm.utils.hashing") else "vllm.utils"
    return importlib.import_module(hashing).sha256
