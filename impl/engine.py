"""An engine as a subject: scheduler, batch and pooling layer, without the model between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class EngineConfig:
    """How an engine is set up; the names are vLLM's."""

    token_budget: int
    max_num_seqs: int
    max_model_len: int
    num_blocks: int
    block_size: int
    long_prefill_token_threshold: int
    prefix_caching: bool
    priority_policy: bool


@dataclass(frozen=True)
class EngineRequest:
    """What reaches the engine's queue."""

    name: str
    prompt_token_ids: tuple[int, ...]
    params: Mapping[str, Any]
    """Of its pooling params, those that are set."""
    priority: int


@dataclass(frozen=True)
class Span:
    """One request's part in a step: `count` tokens from position `start` on."""

    name: str
    start: int
    count: int


@dataclass(frozen=True)
class EngineStep:
    """What an engine did in one step: who was computed, in batch order, and who was moved."""

    spans: tuple[Span, ...]
    preempted: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    slot_problems: tuple[str, ...] = ()
    """Fields of the batch that belong to another request than the one named there."""
    outputs: Mapping[str, Sequence[torch.Tensor | None]] = field(default_factory=dict)
    """Results handed out for a request in this step; once is right."""
    rewritten: tuple[str, ...] = ()
    """What the step before handed to the scheduler and this one has changed since, in words."""


class Observer(Protocol):
    """The harness within the engine: it makes the hidden states and sees each call of the pooler."""

    def forward(self, spans: Sequence[Span]) -> torch.Tensor:
        """The hidden states of a batch, (tokens, hidden_size), in the buffer that is reused each step."""

    def before_pooling(self, hidden_states: torch.Tensor, metadata: Any) -> None:
        """The pooler is about to be called."""

    def after_pooling(self, hidden_states: torch.Tensor, metadata: Any, outputs: Any) -> None:
        """The pooler has returned."""


class Engine(Protocol):
    """An engine that is driven step by step, without clock, threads or randomness."""

    def add(self, request: EngineRequest) -> None:
        """A request arrives."""

    def abort(self, name: str) -> None:
        """A request's client is gone."""

    def release(self, query: str) -> None:
        """The client of a query is gone, and so are all its documents (late interaction)."""

    def kept(self) -> Any:
        """The object whose attributes hold the rows of queries; one without tensors where there are none."""

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, preempting who is running."""

    def step(self) -> EngineStep:
        """Schedule, compute, pool, hand out."""

    def unfinished(self) -> Sequence[str]:
        """Requests that wait or run."""

    def leftovers(self) -> Sequence[str]:
        """Per-request state that is still there, in words; nothing once every request has left."""


BuildEngine = Callable[[Any, EngineConfig, Observer], Engine]
"""`(PoolerConfig, EngineConfig, Observer) -> Engine`."""
