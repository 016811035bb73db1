"""Pooling layers for the engines of older releases, which can't be made from their classes alone.

Until 0.13 poolers read their head off a model's config: they are imported on their own, as for `vllm@DIR`,
with its stand-ins, and handed the engine's metadata. Until 0.10.2 they have a shape that the harness doesn't
know, until 0.10.1 without a pooling cursor: `hostsplit` pools in their place, so that the rest is driven.
"""

from types import SimpleNamespace
from typing import Any, Final, Protocol

import torch

from impl.config import Lack, Level, PoolerConfig, PoolFn
from impl.hostsplit import HostSplit
from impl.pooler import Pooler
from impl.vllm.adapter import params_class
from impl.vllm.installed import Installed
from impl.vllm.layer import SingleFile, layer
from impl.vllm.loader import Tree
from oracle import metadata as newest

_FLAGS: Final = ("normalize", "activation", "softmax")


class EngineLayer(Protocol):
    """The pooling layer of an engine, as `impl.vllm.layer.Layer` has it."""

    api: Any

    def build(self, config: PoolerConfig, level: Level) -> PoolFn:
        """The whole layer."""

    def lacks(self) -> frozenset[Lack]:
        """What the release does not have."""


def layer_of_engine(installed: Installed) -> EngineLayer:
    """The release's own layer, or the next best."""
    if installed.has("PoolingSequenceGroupOutput"):
        return OwnLayer(installed)
    found = layer(installed)
    if isinstance(found, SingleFile):
        alone = layer(Tree(installed.sources.root))
        alone.api.PoolingParams = found.api.PoolingParams
        return alone
    return found


class OwnLayer:
    """`hostsplit` as the pooler of a release until 0.10.2."""

    def __init__(self, installed: Installed) -> None:
        self.api = SimpleNamespace(
            PoolingParams=params_class(installed["PoolingParams"]),
            PoolingStates=newest.PoolingStates,
            PoolingMetadata=newest.PoolingMetadata,
        )

    def build(self, config: PoolerConfig, level: Level) -> PoolFn:
        """See `EngineLayer.build`."""
        return OwnPooler(config)

    def lacks(self) -> frozenset[Lack]:
        """See `EngineLayer.lacks`."""
        return frozenset(("async-scheduling", "chunked-token-tasks", "token-heads", "late-interaction"))


class OwnPooler:
    """`hostsplit`, taking the params of then."""

    def __init__(self, config: PoolerConfig) -> None:
        self.pooler = Pooler(config, HostSplit(config))
        self.needs_token_ids = config.tok_pooling_type == "STEP"

    def __call__(self, hidden_states: torch.Tensor, metadata: Any) -> Any:
        """Pool the rows of a step; `metadata` has a cursor."""
        own = newest.PoolingMetadata(
            prompt_lens=metadata.prompt_lens,
            prompt_token_ids=metadata.prompt_token_ids,
            prompt_token_ids_cpu=metadata.prompt_token_ids_cpu,
            pooling_params=[_newer(params) for params in metadata.pooling_params],
            pooling_states=metadata.pooling_states,
            pooling_cursor=metadata.pooling_cursor,
        )
        return self.pooler(hidden_states, own)

    def get_pooling_updates(self, task: str) -> Any:
        """What a runner changes about a request's params when it comes."""

        def apply(params: Any) -> None:
            params.requires_token_ids = self.needs_token_ids

        return SimpleNamespace(apply=apply)


def _newer(params: Any) -> newest.PoolingParams:
    return newest.PoolingParams(
        task="token_classify" if params.task == "encode" else params.task,
        use_activation=any(getattr(params, flag) for flag in _FLAGS),
        dimensions=params.dimensions,
        step_tag_id=params.step_tag_id,
        returned_token_ids=params.returned_token_ids,
    )


def whole(metadata: Any, counts: Any, seq_lens: torch.Tensor) -> Any:
    """An engine's metadata with what a release's may lack: states, lengths, or the cursor."""
    if hasattr(metadata, "pooling_states"):
        return metadata
    made = newest.PoolingMetadata(
        prompt_lens=metadata.prompt_lens,
        prompt_token_ids=metadata.prompt_token_ids,
        prompt_token_ids_cpu=metadata.prompt_token_ids,
        pooling_params=metadata.pooling_params,
        pooling_states=[newest.PoolingStates() for _ in metadata.pooling_params],
    )
    made.build_pooling_cursor(counts, seq_lens, torch.device("cpu"))
    return made
