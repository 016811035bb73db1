"""Makes a release's own methods, heads and dispatcher, and says what it does not have.

Two ways of building, for the two shapes that the layer has had; within each, what changed from release
to release is read off the signatures.
"""

import sys
from abc import ABC, abstractmethod
from inspect import signature
from typing import Any, Final

import torch

from impl.config import Lack, Level, PoolerConfig, PoolFn, SubjectError
from impl.vllm.adapter import api
from impl.vllm.loader import Library
from impl.vllm.model import model_config, pooler_config
from oracle.metadata import RowsConvention

METHODS: Final = {"ALL": "AllPool", "STEP": "StepPool", "CLS": "CLSPool", "LAST": "LastPool", "MEAN": "MeanPool"}


class Layer(ABC):
    """A release's pooling layer.

    Attributes:
        api: its metadata classes, see `impl.vllm.adapter`.

    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.api = api(library)

    def build(self, config: PoolerConfig, level: Level) -> PoolFn:
        """A pooling method, or a DispatchPooler over all tasks."""
        with self.library.config(config):
            if level == "method":
                return self.method(config.pooling_type)
            dispatcher: PoolFn = self.library["DispatchPooler"](self.by_task(config))
            return dispatcher

    @abstractmethod
    def method(self, pooling_type: str) -> PoolFn:
        """The method of a pooling type."""

    @abstractmethod
    def by_task(self, config: PoolerConfig) -> dict[str, Any]:
        """A pooler for each task, with its head."""

    @abstractmethod
    def lacks(self) -> frozenset[Lack]:
        """What the release does not have."""

    def rows(self) -> RowsConvention:
        """What the dispatcher hands to a sub-pooler: seen by having it dispatch.

        One that raises is taken for a new one; the scenarios will show what is wrong with it.
        """
        try:
            handed = self._dispatched()
        except SubjectError:
            raise
        except Exception:
            return "group"
        return "step" if max(handed) > 1 else "group"

    def _dispatched(self) -> list[int]:
        """How many rows each of two one-token groups is handed."""
        handed: list[int] = []

        class Recorder(torch.nn.Module):
            def get_supported_tasks(self) -> set[str]:
                return {"embed", "classify"}

            def forward(self, hidden_states: torch.Tensor, metadata: Any) -> list[None]:
                handed.append(hidden_states.shape[0])
                return [None] * len(metadata.pooling_params)

        lens = torch.ones(2, dtype=torch.int64)
        metadata = self.api.PoolingMetadata(
            prompt_lens=lens,
            prompt_token_ids=None,
            prompt_token_ids_cpu=None,
            pooling_params=[self.api.PoolingParams(task=task, use_activation=True) for task in ("embed", "classify")],
            pooling_states=[self.api.PoolingStates(), self.api.PoolingStates()],
        )
        metadata.build_pooling_cursor(lens.numpy(), lens, torch.device("cpu"), None)
        dispatch = self.library["DispatchPooler"]({"embed": Recorder(), "classify": Recorder()})
        dispatch(torch.zeros(2, 1), metadata)
        return handed


class Package(Layer):
    """From 0.14: method, head and pooler of a task are made apart."""

    def method(self, pooling_type: str) -> PoolFn:
        """See `Layer.method`."""
        method: PoolFn = self.library[METHODS[pooling_type]]()
        return method

    def by_task(self, config: PoolerConfig) -> dict[str, Any]:
        """See `Layer.by_task`."""
        library, head = self.library, config.head
        dispatcher, settings = library["DispatchPooler"], pooler_config(config, "")
        poolers: dict[str, Any] = dict(dispatcher.for_embedding(settings).poolers_by_task)
        poolers |= dispatcher.for_seq_cls(
            settings,
            pooling=None if head.dense is None else self._dense_pooler(config),
            classifier=head.classifier,
        ).poolers_by_task
        # Until 0.18 scores had a task of their own, which only differed in its activation.
        poolers.pop("score", None)
        if not isinstance(poolers["token_classify"].pooling, library[METHODS[config.tok_pooling_type]]):
            # Until 0.29 for_seq_cls took ALL whatever the config; models that pool by steps made theirs so.
            made = self._module("TokenPooler").pooler_for_token_classify
            poolers["token_classify"] = made(settings, classifier=head.classifier)
        for task in ("token_embed", "token_classify"):
            poolers[task] = self._filter(poolers[task], config)
        if library.has("BgeM3Pooler"):
            poolers["embed&token_classify"] = library["BgeM3Pooler"](poolers["token_classify"], poolers["embed"])
        return poolers

    def _dense_pooler(self, config: PoolerConfig) -> Any:
        """BERT's pooler, the pooling in front of its classifier, with the scenario's weights loaded."""
        pooler = self.library.excerpt("BertPooler")(model_config(config))
        pooler.dense = _Loaded(config.head.dense)
        return pooler

    def lacks(self) -> frozenset[Lack]:
        """See `Layer.lacks`."""
        # The filter asserts that no prompt is cut; its models are encoders, whose prompts engines never cut.
        found: set[Lack] = {"chunked-bos-eos-filter"}
        # Until 0.19 there was a bias, which is the mean by another name, and no sigma.
        if "logit_sigma" not in signature(self.library["ClassifierPoolerHead"]).parameters:
            found.add("logit-sigma")
        if not hasattr(self._module("PoolerActivation"), "get_act_fn"):
            # Until 0.18 what a cross-encoder names was for the task of scores.
            found.add("named-activation")
        if not self.library.has("LateChunkingParams"):
            found.add("late-chunking")
        if not self.library.has("BgeM3Pooler"):
            found.add("dense-and-sparse")
        if not self.library.has("BOSEOSFilter"):
            found.add("bos-eos-filter")
        if self.library.excerpt("BertPooler") is None:
            found.add("dense-head")
        if not self.library.has("LateInteractionRunner"):
            found.add("late-interaction")
        return frozenset(found)

    def _module(self, name: str) -> Any:
        """The module that defines a class."""
        return sys.modules[self.library[name].__module__]

    def _filter(self, pooler: Any, config: PoolerConfig) -> Any:
        if config.bos_token_id is None and config.eos_token_id is None:
            return pooler
        # To the release, -1 is no token.
        ids = (-1 if token_id is None else token_id for token_id in (config.bos_token_id, config.eos_token_id))
        return self.library["BOSEOSFilter"](pooler, *ids)


class _Loaded(torch.nn.Module):
    """A learned layer of the scenario, as a module."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: torch.Tensor) -> Any:
        return self.layer(rows)


class SingleFile(Layer):
    """Until 0.13: poolers read dtype, projector and bias off the engine's config."""

    def method(self, pooling_type: str) -> PoolFn:
        """See `Layer.method`."""
        if pooling_type == "STEP":
            step_pooler = self.library["StepPooler"]
            without_head = {"head": None} if "head" in signature(step_pooler).parameters else {}
            method: PoolFn = step_pooler(**without_head).extract_states
        else:
            method = self.library[METHODS[pooling_type]]()
        return method

    def by_task(self, config: PoolerConfig) -> dict[str, Any]:
        """See `Layer.by_task`."""
        factory, classifier = self.library["Pooler"], self.library["ClassifierPooler"]
        by_sequence = pooler_config(config, config.seq_pooling_type)
        by_token = pooler_config(config, config.tok_pooling_type)
        poolers = {
            "embed": factory.for_embed(by_sequence),
            "classify": classifier(
                self.method(config.seq_pooling_type),
                config.head.classifier,
                act_fn=classifier.act_fn_for_seq_cls(model_config(config)),
            ),
        }
        if hasattr(factory, "for_encode"):
            # Before 0.11.1 there was one token task, with a softmax for all of its head.
            return poolers | {"encode": factory.for_encode(by_token)}
        return poolers | {
            "token_embed": factory.for_token_embed(by_token),
            "token_classify": factory.for_token_classify(by_token, classifier=config.head.classifier),
        }

    def lacks(self) -> frozenset[Lack]:
        """See `Layer.lacks`."""
        # The runner copied outputs to the host before it went on, whatever the scheduler.
        # BERT's dense layer ran in the model's dtype whatever that of the head, and for CLS alone.
        found: set[Lack] = {
            "async-scheduling", "logit-sigma", "open-head-dtype", "chunked-bos-eos-filter", "bos-eos-filter",
            "dense-head", "late-interaction", "named-activation", "late-chunking", "dense-and-sparse",
        }  # fmt: skip
        if not self.library.has("PoolingStates"):
            found.add("chunked-token-tasks")
        if not self.library.has("AllPooler"):
            found.add("token-heads")
        return frozenset(found)


def layer(library: Library) -> Layer:
    """The layer of a release, of whichever shape."""
    return SingleFile(library) if library.has("SimplePooler") else Package(library)
