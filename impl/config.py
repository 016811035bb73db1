"""What a subject is asked for, and what it answers with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, get_args

import torch

from impl.engine import BuildEngine
from oracle import metadata
from oracle.metadata import RowsConvention

Outputs = Sequence[torch.Tensor | None] | torch.Tensor
PoolFn = Callable[[torch.Tensor, Any], Outputs]
"""`(hidden_states, pooling_metadata) -> outputs`, one entry a request."""
Layer = Callable[[torch.Tensor], torch.Tensor]
Level = Literal["method", "pooler", "engine"]
Part = Literal[
    "bos-eos-filter", "params-verification", "dense-head", "late-interaction",
    "models-activation", "late-chunking", "dense-and-sparse",
]  # fmt: skip
"""What a whole layer may have besides heads and dispatch.

bos-eos-filter: token tasks hand out no rows for BOS and EOS at the ends of a prompt. params-verification: a
request's params are looked at before it is scheduled. dense-head: `classify` may have a dense layer with a tanh.
late-interaction: a document's rows are scored against those of a query, which are kept until then.
models-activation: the model's config says which activation its logits take. late-chunking: rows of token_embed
may be means over some tokens each. dense-and-sparse: there is the task `embed&token_classify`, BGE-M3's.
"""
PARTS: Final[frozenset[Part]] = frozenset(get_args(Part))
Lack = Literal[
    Part, "async-scheduling", "chunked-token-tasks", "token-heads", "logit-sigma", "open-head-dtype",
    "chunked-bos-eos-filter", "named-activation",
]  # fmt: skip
"""What a subject may do without, because the release that it is documents or never had it: any part, and

async-scheduling: a step's outputs are read before the next one starts. chunked-token-tasks: a token
task's prompt comes whole in one step. token-heads: token tasks have no learned layers, and token_embed
is none of them. logit-sigma: logits are not scaled. open-head-dtype: a head always has a dtype of its own.
chunked-bos-eos-filter: the filter takes whole prompts, as engines give them to the encoders that have one.
named-activation: of a model's config the problem type alone is heeded, not the module that a cross-encoder names.
"""


@dataclass(frozen=True)
class HeadConfig:
    """The learned layers after pooling; None leaves a layer out."""

    head_dtype: torch.dtype | None = None
    projector: Layer | None = None
    classifier: Layer | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    dense: Layer | None = None
    """Followed by a tanh, in front of the classifier of `classify` alone."""
    num_labels: int = 0
    """Width of the logits of `classify`, as the model's config has it."""
    problem_type: str | None = None
    """The model's: regression leaves logits as they are, multi_label_classification takes a sigmoid of each,
    single_label_classification a softmax, or a sigmoid if there is one; None: as `activation_fn` says."""
    activation_fn: str | None = None
    """The module of torch.nn for logits: Identity, Sigmoid, Softmax or Tanh; None: as for a single label."""


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
    bos_token_id: int | None = None
    """Where either is set, a token task's result goes without the row of BOS at the prompt's start and of EOS
    at its end; the rows that are left keep their axis, and one of width 1 is dropped."""
    eos_token_id: int | None = None
    head: HeadConfig = field(default_factory=HeadConfig)


@dataclass(frozen=True)
class ModelConfig:
    """What a request's params are verified against; the names are vLLM's."""

    embedding_size: int
    is_matryoshka: bool = True
    matryoshka_dimensions: tuple[int, ...] | None = None
    """The widths to which embeddings may be cut; None: to any."""
    tok_pooling_type: str = "ALL"
    seq_pooling_type: str = "LAST"


Verify = Callable[[Any, ModelConfig], None]
"""`(params, model_config)`: raises a ValueError if the model can't deliver them, or else fills in what is None."""


class LateInteraction(Protocol):
    """Keeps the rows of queries, and scores documents against them; lives as long as the worker.

    Which request is a query or a document is told by its `late_interaction_params`, a query's key being its name.
    """

    def register(self, name: str, params: Any) -> None:
        """A request is scheduled for the first time, or anew after a preemption."""

    def gone(self, names: Sequence[str]) -> None:
        """Requests have finished or were aborted, of which some may never have been scheduled."""

    def release(self, query_keys: Sequence[str]) -> None:
        """The client of these queries is gone, and so are all their documents."""

    def score(self, outputs: Outputs, params: Sequence[Any], names: Sequence[str], finished: Sequence[bool]) -> Outputs:
        """A step's outputs with, of those who finish, a score () for each document and a zero () for each query."""

    def kept(self) -> Any:
        """The object whose attributes hold the rows of queries."""


class MetadataApi(Protocol):
    """The classes through which the harness speaks to a subject; `oracle.metadata` has this shape."""

    PoolingParams: Callable[..., Any]
    LateInteractionParams: Callable[..., Any]
    LateChunkingParams: Callable[..., Any]
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
        lacks: what it does not have and is not asked for; by default only parts.
        verify: verifies params, where that is among its parts.
        late_interaction: makes what scores documents, where that is among its parts.

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
    lacks: frozenset[Lack] = PARTS
    sync_budgets: Mapping[str, SyncBudget] = field(default_factory=dict)
    verify: Verify | None = None
    late_interaction: Callable[[], LateInteraction] | None = None

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
