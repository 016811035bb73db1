"""Makes a release's own methods, heads and dispatcher, and says what it does not have.

Two ways of building, for the two shapes that the layer has had; within each, what changed from release
to release is read off the signatures.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from inspect import signature
from types import SimpleNamespace
from typing import Any, Final

import torch

from impl.config import Lack, Level, PoolerConfig, PoolFn, SubjectError
from impl.vllm.adapter import api
from impl.vllm.loader import Library
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
        tok_pooler, seq_pooler = library["TokenPooler"], library["SequencePooler"]
        tok_method, seq_method = self.method(config.tok_pooling_type), self.method(config.seq_pooling_type)
        embed = {
            "projector": head.projector,
            "head_dtype": head.head_dtype,
            "activation": library["PoolerNormalize"](),
        }
        classify = {
            "classifier": head.classifier,
            "head_dtype": head.head_dtype,
            "activation": _dynamic(library["PoolerClassify"]),
            **({"logit_mean": head.logit_mean, "logit_sigma": head.logit_sigma} if self._has_sigma else
               {"logit_bias": head.logit_mean}),
        }  # fmt: skip
        return {
            "token_embed": self._filter(tok_pooler(tok_method, library["TokenEmbeddingPoolerHead"](**embed)), config),
            "token_classify": self._filter(
                tok_pooler(tok_method, library["TokenClassifierPoolerHead"](**classify)), config
            ),
            "embed": seq_pooler(seq_method, library["EmbeddingPoolerHead"](**embed)),
            "classify": seq_pooler(
                seq_method if head.dense is None else self._dense_pooler(config),
                library["ClassifierPoolerHead"](**classify),
            ),
        }

    def _dense_pooler(self, config: PoolerConfig) -> Any:
        """BERT's pooler, the pooling in front of its classifier, with the scenario's weights loaded."""
        model_config = SimpleNamespace(
            head_dtype=config.head.head_dtype,
            pooler_config=SimpleNamespace(seq_pooling_type=config.seq_pooling_type),
            # The weights, which are loaded below, know how wide they are.
            hf_config=SimpleNamespace(hidden_size=1),
        )
        pooler = self.library.excerpt("BertPooler")(model_config)
        pooler.dense = _Loaded(config.head.dense)
        return pooler

    def lacks(self) -> frozenset[Lack]:
        """See `Layer.lacks`."""
        # The filter asserts that no prompt is cut; its models are encoders, whose prompts engines never cut.
        found: set[Lack] = {"chunked-bos-eos-filter"}
        if not self._has_sigma:
            found.add("logit-sigma")
        if not self.library.has("BOSEOSFilter"):
            found.add("bos-eos-filter")
        if self.library.excerpt("BertPooler") is None:
            found.add("dense-head")
        if not self.library.has("LateInteractionRunner"):
            found.add("late-interaction")
        return frozenset(found)

    @cached_property
    def _has_sigma(self) -> bool:
        # Until 0.19 there was a bias, which is the mean by another name, and no sigma.
        return "logit_sigma" in signature(self.library["ClassifierPoolerHead"]).parameters

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
            method: PoolFn = self._step_pooler(None).extract_states
        else:
            method = self.library[METHODS[pooling_type]]()
        return method

    def by_task(self, config: PoolerConfig) -> dict[str, Any]:
        """See `Layer.by_task`."""
        library = self.library
        method = self.method(config.seq_pooling_type)
        classify = library["ClassifierPooler"](
            method, config.head.classifier, act_fn=_dynamic(library["PoolerClassify"])
        )
        poolers = {"embed": library["SimplePooler"](method, library["EmbeddingPoolerHead"]()), "classify": classify}
        if not library.has("AllPooler"):
            return poolers | {"encode": self._encoder(config)}
        token = library["AllPooler"] if config.tok_pooling_type == "ALL" else self._step_pooler
        token_classify = library["TokenClassifierPoolerHead"](classifier=config.head.classifier)
        return poolers | {
            "token_embed": token(library["TokenEmbeddingPoolerHead"]()),
            "token_classify": token(token_classify),
        }

    def lacks(self) -> frozenset[Lack]:
        """See `Layer.lacks`."""
        # The runner copied outputs to the host before it went on, whatever the scheduler.
        # BERT's dense layer ran in the model's dtype whatever that of the head, and for CLS alone.
        found: set[Lack] = {
            "async-scheduling", "logit-sigma", "open-head-dtype", "chunked-bos-eos-filter", "bos-eos-filter",
            "dense-head", "late-interaction",
        }  # fmt: skip
        if not self.library.has("PoolingStates"):
            found.add("chunked-token-tasks")
        if not self.library.has("AllPooler"):
            found.add("token-heads")
        return frozenset(found)

    def _encoder(self, config: PoolerConfig) -> Any:
        """Before 0.11.1 there was one token task, with a softmax for all of its head."""
        if config.tok_pooling_type == "STEP":
            return self._step_pooler(None)
        return self.library["SimplePooler"](self.method("ALL"), self.library["RewardPoolerHead"]())

    def _step_pooler(self, head: Any) -> Any:
        step_pooler = self.library["StepPooler"]
        return step_pooler(head) if "head" in signature(step_pooler).parameters else step_pooler()


def layer(library: Library) -> Layer:
    """The layer of a release, of whichever shape."""
    return SingleFile(library) if library.has("SimplePooler") else Package(library)


def _dynamic(classify: Any) -> Any:
    """The activation that tells softmax from sigmoid by the width of the logits."""
    return classify(static_num_labels=False) if "static_num_labels" in signature(classify).parameters else classify()
