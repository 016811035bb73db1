"""What a subject is asked for, and what it answers with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch

from impl.engine import BuildEngine
from oracle import metadata
from oracle.metadata import RowsConvention

Outputs = Sequence[torch.Tensor | None] | torch.Tensor
PoolFn = Callable[[torch.Tensor, Any], Outputs]
"""`(hidden_states, pooling_metadata) -> outputs`, one entry a request."""
Layer = Callable[[torch.Tensor], torch.Tensor]
Level = Literal["method", "pooler", "engine"]
Lack = Literal["async-scheduling", "chunked-token-tasks", "token-heads", "logit-sigma", "open-head-dtype"]
"""What a subject may do without, because the release that it is documents or never had it.

async-scheduling: a step's outputs are read before the next one starts. chunked-token-tasks: a token
task's prompt comes whole in one step. token-heads: token tasks have no learned layers, and token_embed
is none of them. logit-sigma: logits are not scaled. open-head-dtype: a head always has a dtype of its own.
"""


@dataclass(frozen=True)
class HeadConfig:
    """The learned layers after pooling; None leaves a layer out."""

    head_dtype: torch.dtype | None = None
    projector: Layer | None = None
    classifier: Layer | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None


@dataclass(frozen=True)
class PoolerConfig:
    """What a factory is called with.

    At level `method` it should return the method of `pooling_type`; at level `pooler` the whole layer,
    which serves every task: `tok_pooling_type` for token tasks, `seq_pooling_type` for the others,
    then the head.
    """

    pooling_type: str = "ALL"
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    rows: RowsConvention = "group"
    tok_pooling_type: str = "ALL"
    seq_pooling_type: str = "LAST"
    head: HeadConfig = field(default_factory=HeadConfig)


class MetadataApi(Protocol):
    """The classes through which the harness speaks to a subject; `oracle.metadata` has this shape."""

    PoolingParams: Callable[..., Any]
    PoolingStates: Callable[[], Any]
    PoolingMetadata: Callable[..., Any]


@dataclass(frozen=True)
class SyncBudget:
    """How often a call may make the host wait for the device: `per_call + per_request * requests`."""

    per_call: int = 0
    per_request: int = 0

    def allowed(self, num_requests: int) -> int:
        """Waits in a call of so many requests."""
        return self.per_call + self.per_request * num_requests


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        name: what reports call it.
        build: makes a pooler for a config at a level.
        supports: the pooling types it serves.
        rows: which calling conventions it takes.
        levels: whether it can be asked for methods, whole poolers, or both.
        api: the metadata classes it is to be handed.
        sync_budgets: by pooling type, how often a call may wait for the device; left out: never.
        spec: how the command line names it; its name if left out.
        product: what it is a release of, for the ledger of known failures; its spec if left out.
        version: the number of that release; empty where there is none.
        lacks: what it does not have and is not asked for.

    """

    name: str
    build: Callable[[PoolerConfig, Level], PoolFn]
    supports: frozenset[str]
    rows: tuple[RowsConvention, ...] = ("group",)
    levels: tuple[Level, ...] = ("method",)
    api: Any = metadata
    build_engine: BuildEngine | None = None
    """Makes an engine, where level `engine` is among the levels."""
    about: str = ""
    spec: str = ""
    product: str = ""
    version: str = ""
    lacks: frozenset[Lack] = frozenset()
    sync_budgets: Mapping[str, SyncBudget] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.spec:
            object.__setattr__(self, "spec", self.name)
        if not self.product:
            object.__setattr__(self, "product", self.spec)

    def sync_budget(self, pooling_type: str) -> SyncBudget:
        """What it declares for a pooling type."""
        return self.sync_budgets.get(pooling_type, SyncBudget())

    def held_to(self, budget: SyncBudget) -> "Subject":
        """The same subject with another budget, whatever it declares."""
        return replace(self, sync_budgets=dict.fromkeys(self.supports, budget))


class SubjectError(Exception):
    """A subject that can't be had: not found, not importable, or of the wrong shape."""
