"""Which features of the option space a scenario has, so that a run can say what it covered."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from fuzz.mix import Mix
from oracle.scenario import DENSE_AND_SPARSE, Scenario, refusal

FLOOR: int = 500
"""Scenarios after which each feature of the mix should have come up, or the mix was lost."""


def features(scenario: Scenario) -> set[str]:
    """Labels of what is in the scenario."""
    options = scenario.options
    found = {
        f"level {options.level}",
        f"rows {options.rows}",
        options.dtype,
        f"index {options.index_dtype}",
        f"content {options.content}",
        *(scenario.pooling_type(request) for request in scenario.requests),
        *(f"task {request.task}" for request in scenario.requests),
    }
    flags = {
        "no request": not scenario.requests,
        "async": options.async_scheduling,
        "chunked prefill off": not options.enable_chunked_prefill,
        "query_start_loc": options.query_start_loc,
        "counts rewritten": options.rewrites_counts,
        "late copies": options.late_copies,
        "dense layer": options.head.dense and any(request.task == "classify" for request in scenario.requests),
        "model's activation": options.head.names_an_activation
        and any("classify" in request.task for request in scenario.requests),
        "late chunking": any(request.chunk_size is not None for request in scenario.requests),
        "dense and sparse": any(request.task == DENSE_AND_SPARSE for request in scenario.requests),
        "documents scored": any(request.query is not None for request in scenario.requests),
        "params verified": options.model is not None,
        "params refused": any(refusal(request, options) for request in scenario.requests),
        "BOS and EOS filtered": options.filters_special_tokens,
        "malformed": options.malformed is not None,
        "prefix hit": any(request.num_cached_tokens for request in scenario.requests),
        "nonfinite": any(request.nan_at is not None or request.inf_at is not None for request in scenario.requests),
        "zero row": any(request.zero_at is not None for request in scenario.requests),
        "states reused": options.reuses_states,
        "many requests": len(scenario.requests) > 40,
        "long prompt": any(request.prompt_len > 32 for request in scenario.requests),
        "traffic": scenario.traffic is not None,
        "empty step": any(not step.scheduled for step in scenario.steps),
        "empty group": any(step.empty_group_at is not None for step in scenario.steps),
        "preempted": any(step.preempted for step in scenario.steps),
        "aborted": any(step.aborted for step in scenario.steps),
        "padding": any(step.padding for step in scenario.steps),
    }
    found.update(name for name, there in flags.items() if there)
    found.update(_schedule_features(scenario))
    return found


def _schedule_features(scenario: Scenario) -> Iterable[str]:
    tasks = {request.name: request.task for request in scenario.requests}
    chunks: Counter[str] = Counter()
    order: list[str] = []
    for step in scenario.steps:
        names = [name for name, _ in step.scheduled]
        chunks.update(names)
        groups = len([task for task, _ in groupby(names, key=tasks.__getitem__)])
        if groups > 1:
            yield "mixed tasks"
        if groups > 2:
            yield "three groups"
        common = [name for name in order if name in names]
        if common != [name for name in names if name in order]:
            yield "batch order changed"
        order = names
    if any(count > 1 for count in chunks.values()):
        yield "two chunks"
    if any(count > 2 for count in chunks.values()):
        yield "three chunks"


def finer(scenario: Scenario) -> set[str]:
    """More labels, for pairs: many groups and chunks, and where in its batch a request is continued."""
    tasks = {request.name: request.task for request in scenario.requests}
    chunks: Counter[str] = Counter()
    found = set()
    for step in scenario.steps:
        names = [name for name, _ in step.scheduled]
        if len([task for task, _ in groupby(names, key=tasks.__getitem__)]) > 3:
            found.add("four groups")
        if len(names) > 1:
            last = len(names) - 1
            places = (
                {0: "first", last: "last"}.get(place, "between") for place, name in enumerate(names) if chunks[name]
            )
            found.update(f"continued {place}" for place in places)
        chunks.update(names)
    if max(chunks.values(), default=0) > 3:
        found.add("four chunks")
    return found


def owed(mix: Mix) -> set[str]:
    """What a long enough run over this mix must have had."""
    due = {*mix.pooling_types, *mix.dtypes, *(f"level {level}" for level in mix.levels)}
    if "async-scheduling" not in mix.lacks:
        due.add("async")
    if mix.levels == ("engine",):
        return due | (
            {"documents scored"} if "late-interaction" not in mix.lacks and "ALL" in mix.pooling_types else set()
        )
    if "chunked-token-tasks" not in mix.lacks:
        # Without them nearly every prompt is computed in one step.
        due.update(("two chunks", "batch order changed", "preempted"))
    due.update(f"rows {rows}" for rows in mix.rows)
    if {"ALL", "STEP"} & set(mix.pooling_types) and {"CLS", "LAST", "MEAN"} & set(mix.pooling_types):
        due.add("mixed tasks")
    if mix.p_late_copies:
        due.add("late copies")
    if "pooler" in mix.levels and "ALL" in mix.pooling_types and "bos-eos-filter" not in mix.lacks:
        due.add("BOS and EOS filtered")
    if "pooler" in mix.levels and {"CLS", "LAST", "MEAN"} & set(mix.pooling_types) and "dense-head" not in mix.lacks:
        due.add("dense layer")
    if "pooler" in mix.levels and "ALL" in mix.pooling_types and "late-interaction" not in mix.lacks:
        due.add("documents scored")
    if "pooler" in mix.levels and "ALL" in mix.pooling_types and "late-chunking" not in mix.lacks:
        due.add("late chunking")
    if "pooler" in mix.levels and "models-activation" not in mix.lacks:
        due.add("model's activation")
    if (
        "pooler" in mix.levels
        and "ALL" in mix.pooling_types
        and {"CLS", "LAST", "MEAN"} & set(mix.pooling_types)
        and "dense-and-sparse" not in mix.lacks
    ):
        due.add("dense and sparse")
    if "pooler" in mix.levels and "params-verification" not in mix.lacks:
        due.update(("params verified", "params refused"))
    return due


def departures(data: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Name and value of each field that is not at its default."""
    for field in msgspec.structs.fields(data):
        value = getattr(data, field.name)
        if value != field.default:
            yield field.name, msgspec.to_builtins(value)
