"""How often the generator uses each feature: what is possible, and at what rate.

A `Mix` bounds the generator and weighs its choices. A campaign draws a fresh mix every so often
(swarm testing): some features off altogether, the others at wildly different rates, so that rare
combinations meet. Source: A. Groce et al., Swarm Testing, ISSTA 2012.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeVar

from fuzz.draws import Draw
from impl.config import Lack, Level, Part, Subject
from oracle.scenario import MALFORMED, POOLING_TYPES, DtypeName, Malformed, PoolingType

T = TypeVar("T")


@dataclass(frozen=True)
class Mix:
    """Bounds and rates for `fuzz.generator`.

    A field that begins with `p_` is a probability: 0 is never, 1 always. The others bound what is
    drawn; a tuple lists what may be chosen, simplest first.
    """

    pooling_types: tuple[PoolingType, ...] = POOLING_TYPES
    levels: tuple[Level, ...] = ("method",)
    rows: tuple[Literal["group", "step"], ...] = ("group",)
    dtypes: tuple[DtypeName, ...] = ("float32", "bfloat16", "float16")
    hidden_sizes: tuple[int, ...] = (4, 1, 2, 3, 8, 16, 33)
    malformed: tuple[Malformed, ...] = ()
    lacks: frozenset[Lack] = frozenset()
    """What no subject of the campaign has, so that nothing is drawn that all would be spared."""
    min_requests: int = 0
    max_requests: int = 4
    max_tokens: int = 6
    long_tokens: int = 0
    """Prompts of up to this many tokens; 0: none."""
    p_no_request: float = 0.02
    p_mixed_tasks: float = 0.5
    p_second_task: float = 0.3
    """embed beside classify, token_embed beside token_classify, within a step."""
    p_unchunked: float = 0.2
    p_whole: float = 0.4
    """A request's remaining tokens scheduled at once."""
    p_partial: float = 0.02
    """The same of a prompt under CLS or MEAN, which need it whole and may refuse."""
    p_pause: float = 0.25
    p_preempt: float = 0.05
    p_abort: float = 0.03
    p_reorder: float = 0.5
    p_empty_group: float = 0.1
    p_empty_step: float = 0.05
    p_padding: float = 0.0
    p_async: float = 0.3
    p_int64: float = 0.3
    p_query_start_loc: float = 0.3
    p_rewrite: float = 0.1
    p_float: float = 0.15
    p_nonfinite: float = 0.0
    p_prefix_hit: float = 0.3
    p_params: float = 0.5
    """A request departs from the default params."""
    p_long: float = 0.0
    p_huge: float = 0.0
    """A prompt of tens of thousands of tokens, or hundreds of requests."""
    p_reuse: float = 0.2
    tags: tuple[int, ...] = (9, 0, 11)
    """Step tags; with several, those of other requests are in a prompt too."""
    p_traffic: float = 0.4
    """Steps made by a scheduler from traffic, rather than drawn one by one."""
    p_scarce: float = 0.6
    """Few KV cache blocks, so that requests are preempted."""
    p_last: float = 0.6
    """An engine serves LAST whatever else was drawn, since others turn its chunking and caching off."""
    p_full_length: float = 0.3
    """The longest prompt is as long as the model takes."""
    p_threshold: float = 0.5
    p_priority: float = 0.2
    p_reset: float = 0.1
    p_head_part: float = 0.5
    """A layer of the head is there."""
    p_seed: float = 1.0
    """Rows of another seed than 0."""
    p_filter: float = 0.2
    """The rows of BOS and EOS are filtered out, where a subject does that."""
    p_verified: float = 0.2
    """Params are verified, and some can't be delivered."""
    p_dense: float = 0.3
    """The head of `classify` begins with a dense layer."""
    p_late: float = 0.5
    """Token embeddings are scored against others (late interaction)."""
    p_models_activation: float = 0.3
    """The model's config says which activation its logits take."""
    p_late_chunking: float = 0.2
    """Rows of token_embed are means over some tokens each."""
    p_dense_and_sparse: float = 0.1
    """Prompts come whole, and of sequence tasks some have BGE-M3's."""
    p_late_copies: float = 0.0
    """Only where copies can be late: on the simulated device."""


_OF_PARTS: Final[dict[str, Part]] = {
    "p_filter": "bos-eos-filter",
    "p_verified": "params-verification",
    "p_dense": "dense-head",
    "p_late": "late-interaction",
    "p_models_activation": "models-activation",
    "p_late_chunking": "late-chunking",
    "p_dense_and_sparse": "dense-and-sparse",
}
"""Rates at which the parts of a layer are there."""

ALL_SMALL: Final = Mix(
    pooling_types=("ALL",), hidden_sizes=(4,), dtypes=("float32",), max_requests=2, max_tokens=2,
    p_second_task=0, p_unchunked=0, p_whole=0.5, p_partial=0, p_preempt=0, p_abort=0, p_empty_group=0,
    p_empty_step=0, p_async=0, p_int64=0, p_query_start_loc=0, p_traffic=0, p_rewrite=0, p_float=0,
    p_params=0, p_seed=0, p_reuse=0, p_head_part=0, p_filter=0, p_verified=0, p_dense=0, p_late=0,
    p_models_activation=0, p_late_chunking=0, p_dense_and_sparse=0, tags=(9,),
)  # fmt: skip
"""ALL pooling, nothing but schedules: small enough to be exhausted."""


def for_subjects(subjects: Iterable[Subject], simulated: bool = False) -> Mix:
    """The widest mix of which each scenario suits one of the subjects or more.

    `simulated` says that it is for the simulated device, where copies may be late and no engine runs.
    """
    subjects = list(subjects)
    supported = frozenset[str]().union(*(subject.supports for subject in subjects))
    possible: tuple[Level, ...] = ("method", "pooler") if simulated else ("method", "pooler", "engine")
    levels = _union(possible, [subject.levels for subject in subjects])
    return Mix(
        # An engine preempts only what takes it several steps.
        max_tokens=16 if levels == ("engine",) else Mix.max_tokens,
        p_reset=0.3 if levels == ("engine",) else Mix.p_reset,
        # Requests of an engine's traffic are few, and two of them must be of one kind to be scored.
        p_late=1.0 if levels == ("engine",) else Mix.p_late,
        pooling_types=tuple(kind for kind in POOLING_TYPES if kind in supported),
        levels=levels,
        rows=_union(("group", "step"), [subject.rows for subject in subjects]),
        lacks=frozenset.intersection(*(subject.lacks for subject in subjects)),
        p_late_copies=0.3 if simulated else 0.0,
    )


def swarm(mix: Mix, draw: Draw) -> Mix:
    """A mix for the next stretch of a campaign: each feature off, rare, as it was, or frequent."""
    changes: dict[str, object] = {}
    for field in fields(mix):
        if field.name.startswith("p_") and field.name not in ("p_no_request", "p_huge", "p_late_copies", *_OF_PARTS):
            changes[field.name] = draw.choice((0.0, 0.02, getattr(mix, field.name), 0.6))
    changes["p_padding"] = draw.choice((0.0, 0.0, 0.02, 0.3))
    changes["p_nonfinite"] = draw.choice((0.0, 0.0, 0.02, 0.3))
    changes["p_reorder"] = draw.choice((0.0, 0.3, 0.7, 1.0))
    # A whole prompt now and then, or schedules would run to hundreds of steps.
    changes["p_whole"] = draw.choice((0.1, 0.3, 0.6))
    changes["p_partial"] = draw.choice((0.0, 0.02, 0.02, 0.3))
    changes["p_pause"] = draw.choice((0.0, 0.1, 0.3, 0.6))
    if draw.chance(0.2):
        changes["malformed"] = MALFORMED
    if draw.chance(0.15):
        changes.update(long_tokens=draw.choice((64, 300, 1000)), p_long=0.2)
    if draw.chance(0.1):
        changes["max_requests"] = draw.choice((8, 16, 40))
    changes["p_huge"] = 0.004
    if draw.chance(0.05):
        changes["hidden_sizes"] = (256, 1024, 4096)
    # Drawn last and where there is the part, so that other subjects' campaigns stay as they are.
    for name, part in _OF_PARTS.items():
        levels = {"pooler", "engine"} if part == "late-interaction" else {"pooler"}
        if levels & set(mix.levels) and part not in mix.lacks:
            changes[name] = draw.choice((0.0, 0.02, getattr(mix, name), 0.6))
    return replace(mix, **changes)  # type: ignore[arg-type]


def _union(order: tuple[T, ...], offered: Iterable[Iterable[T]]) -> tuple[T, ...]:
    """What is offered by any, in the given order."""
    there = {name for some in offered for name in some}
    return tuple(name for name in order if name in there)
