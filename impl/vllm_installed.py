"""`vllm`: the pooling layer of the vLLM that is installed here, with its own classes throughout.

Nothing of vLLM is replaced: its methods, heads and DispatchPooler run on its own metadata and params.
Only the engine around them is the harness.
"""

import os
from typing import Any

from impl.config import HeadConfig, Level, PoolerConfig, PoolFn, Subject, SubjectError

DISPATCH_SLICES_ROWS = (0, 21)
"""From this release on the dispatcher hands each sub-pooler its group's own rows."""


def subject() -> Subject:
    """The installed vLLM as a subject.

    Raises:
        SubjectError: vLLM is not installed, or lacks a class that a pooling layer has.
    """
    configure()
    try:
        layer = VllmLayer()
    except ModuleNotFoundError as error:
        raise SubjectError(
            f"vLLM can't be imported here: {error}. `tox -e vllm` makes an environment that has it"
        ) from error
    except (ImportError, AttributeError) as error:
        raise SubjectError(f"the installed vLLM has another layout than is known: {error}") from error
    return Subject(
        name=f"vllm {layer.version}",
        build=layer.build,
        supports=frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN")),
        rows=("group",) if layer.release >= DISPATCH_SLICES_ROWS else ("step",),
        levels=("method", "pooler"),
        api=layer,
        about="the installed release, unchanged",
    )


def configure() -> None:
    """Prepare the import of vLLM: a plain wheel asks for a platform, and the pooling layer needs none."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


class VllmLayer:
    """vLLM's classes, imported once, and the poolers made of them."""

    def __init__(self) -> None:
        from importlib.metadata import version

        from vllm.config import DeviceConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
        from vllm.model_executor.layers.pooler import activations, special
        from vllm.model_executor.layers.pooler.seqwise import heads as seq_heads
        from vllm.model_executor.layers.pooler.seqwise import methods as seq_methods
        from vllm.model_executor.layers.pooler.seqwise import poolers as seq_poolers
        from vllm.model_executor.layers.pooler.tokwise import heads as tok_heads
        from vllm.model_executor.layers.pooler.tokwise import methods as tok_methods
        from vllm.model_executor.layers.pooler.tokwise import poolers as tok_poolers
        from vllm.pooling_params import PoolingParams
        from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

        self.version = version("vllm")
        self.release = tuple(int(part) for part in self.version.split("+")[0].split(".")[:2])
        self.PoolingParams = PoolingParams
        self.PoolingMetadata = PoolingMetadata
        self.PoolingStates = PoolingStates
        self._config_classes = (VllmConfig, SchedulerConfig, DeviceConfig)
        self._use_config = set_current_vllm_config
        self._tok = (tok_methods, tok_heads, tok_poolers)
        self._seq = (seq_methods, seq_heads, seq_poolers)
        self._activations = activations
        self._special = special
        self._configs: dict[tuple[bool, bool], Any] = {}

    def build(self, config: PoolerConfig, level: Level) -> PoolFn:
        """A pooling method, or a DispatchPooler over all four tasks."""
        with self._use_config(self._vllm_config(config)):
            pool: PoolFn = self._method(config.pooling_type) if level == "method" else self._dispatcher(config)
            return pool

    def _method(self, pooling_type: str) -> Any:
        if pooling_type in ("ALL", "STEP"):
            return self._tok[0].get_tok_pooling_method(pooling_type)
        return self._seq[0].get_seq_pooling_method(pooling_type)

    def _dispatcher(self, config: PoolerConfig) -> Any:
        head = config.head
        tok_heads, tok_pooler = self._tok[1], self._tok[2].TokenPooler
        seq_heads, seq_pooler = self._seq[1], self._seq[2].SequencePooler
        token_method = self._method(config.tok_pooling_type)
        sequence_method = self._method(config.seq_pooling_type)
        embed = {
            "projector": head.projector,
            "head_dtype": head.head_dtype,
            "activation": self._activations.PoolerNormalize(),
        }
        classify = self._classifier_arguments(head)
        return self._special.DispatchPooler(
            {
                "token_embed": tok_pooler(token_method, tok_heads.TokenEmbeddingPoolerHead(**embed)),
                "token_classify": tok_pooler(token_method, tok_heads.TokenClassifierPoolerHead(**classify)),
                "embed": seq_pooler(sequence_method, seq_heads.EmbeddingPoolerHead(**embed)),
                "classify": seq_pooler(sequence_method, seq_heads.ClassifierPoolerHead(**classify)),
            }
        )

    def _classifier_arguments(self, head: HeadConfig) -> dict[str, Any]:
        return {
            "classifier": head.classifier,
            "logit_mean": head.logit_mean,
            "logit_sigma": head.logit_sigma,
            "head_dtype": head.head_dtype,
            "activation": self._activations.PoolerClassify(),
        }

    def _vllm_config(self, config: PoolerConfig) -> Any:
        key = (config.enable_chunked_prefill, config.async_scheduling)
        if key not in self._configs:
            vllm_config, scheduler_config, device_config = self._config_classes
            made = vllm_config(
                scheduler_config=scheduler_config(
                    max_model_len=8192,
                    max_num_batched_tokens=8192,
                    max_num_seqs=256,
                    is_encoder_decoder=False,
                    enable_chunked_prefill=config.enable_chunked_prefill,
                ),
                device_config=device_config(device="cpu"),
            )
            # Construction overrules these two on a CPU; the pooler reads them off the config.
            made.scheduler_config.enable_chunked_prefill = config.enable_chunked_prefill
            made.scheduler_config.async_scheduling = config.async_scheduling
            self._configs[key] = made
        return self._configs[key]
