"""From a scenario that fails to a small one that fails in the same way.

Greedy: each candidate is simpler than the scenario it was made from by one edit, and the first that
still breaks the same contract is taken. Works on any scenario, drawn or read from a file.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from oracle.scenario import MAX_MODEL_LEN, Head, Model, Options, Request, Scenario, Step, Traffic, problems

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Shrunk:
    """The smallest scenario found, and how many were tried."""

    scenario: Scenario
    tried: int


def shrink(scenario: Scenario, still_fails: Callable[[Scenario], bool], max_time_s: float) -> Shrunk:
    """Simplify while it still fails, until nothing helps or the time is up."""
    deadline = time.monotonic() + max_time_s
    tried = 0
    progress = True
    while progress:
        progress = False
        for candidate in candidates(scenario):
            if time.monotonic() > deadline:
                return Shrunk(scenario, tried)
            if next(problems(candidate), None) is not None:
                continue
            tried += 1
            if still_fails(candidate):
                scenario, progress = candidate, True
                break
    return Shrunk(scenario, tried)


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Simpler scenarios by one edit, the boldest first; some may not be able to happen."""
    yield from _without_requests(scenario)
    yield from _without_steps(scenario)
    yield from _plainer_options(scenario)
    yield from _plainer_steps(scenario)
    yield from _shorter_prompts(scenario)
    yield from _shorter_chunks(scenario)
    yield from _plainer_requests(scenario)
    yield from _calmer_traffic(scenario)
    yield from _sooner_traffic(scenario)
    yield from _renamed(scenario)


def _without_requests(scenario: Scenario) -> Iterator[Scenario]:
    names = [request.name for request in scenario.requests]
    # Halves first: a large batch falls in a few tries.
    for size in sorted({len(names) // 2, len(names) // 4, 1} - {0}, reverse=True):
        for start in range(0, len(names), size):
            yield _only(scenario, set(names[:start] + names[start + size :]))


def _only(scenario: Scenario, names: set[str]) -> Scenario:
    """The scenario with these requests alone, less the steps that are then empty."""
    steps = [
        replace(
            step,
            scheduled=tuple(entry for entry in step.scheduled if entry[0] in names),
            preempted=tuple(name for name in step.preempted if name in names),
            aborted=tuple(name for name in step.aborted if name in names),
        )
        for step in scenario.steps
    ]
    kept = tuple(
        _within(after)
        for before, after in zip(scenario.steps, steps, strict=True)
        if after.scheduled or not before.scheduled
    )
    traffic = scenario.traffic
    if traffic is not None:
        arrivals = zip(scenario.requests, traffic.arrivals, strict=True)
        traffic = replace(traffic, arrivals=tuple(a for request, a in arrivals if request.name in names))
    return replace(
        scenario,
        requests=tuple(request for request in scenario.requests if request.name in names),
        steps=kept,
        traffic=traffic,
    )


def _within(step: Step) -> Step:
    """With the empty group inside the batch again."""
    if step.empty_group_at is None:
        return step
    return replace(step, empty_group_at=min(step.empty_group_at, len(step.scheduled)))


def _calmer_traffic(scenario: Scenario) -> Iterator[Scenario]:
    """With one thing less about the traffic, or a smaller engine."""
    traffic = scenario.traffic
    if traffic is None:
        return
    for name, plain in (
        ("priority_policy", False),
        ("prefix_caching", False),
        ("long_prefill_token_threshold", 0),
        ("max_model_len", MAX_MODEL_LEN),
    ):
        if getattr(traffic, name) != plain:
            yield replace(scenario, traffic=replace(traffic, **{name: plain}))
    if traffic.max_model_len < MAX_MODEL_LEN:
        yield from _shorter_models(scenario, traffic)
    if traffic.cache_resets:
        yield replace(scenario, traffic=replace(traffic, cache_resets=traffic.cache_resets[:-1]))
    for name, least in (("num_blocks", 2), ("token_budget", 1), ("max_num_seqs", 1), ("block_size", 1)):
        value = getattr(traffic, name)
        for smaller in sorted({least, value // 2, value - 1}):
            if least <= smaller < value:
                yield replace(scenario, traffic=replace(traffic, **{name: smaller}))
    for place, arrival in enumerate(traffic.arrivals):
        for plainer in (
            replace(arrival, at=0),
            replace(arrival, at=max(0, arrival.at - 1)),
            replace(arrival, priority=0),
            replace(arrival, abort_at=None),
            replace(arrival, waits=True),
        ):
            if plainer != arrival:
                arrivals = (*traffic.arrivals[:place], plainer, *traffic.arrivals[place + 1 :])
                yield replace(scenario, traffic=replace(traffic, arrivals=arrivals))


def _sooner_traffic(scenario: Scenario) -> Iterator[Scenario]:
    """With one step less before something reaches the engine, and perhaps one token less to compute until then."""
    traffic = scenario.traffic
    if traffic is None:
        return
    moments = {
        *traffic.cache_resets,
        *(own.at for own in traffic.arrivals),
        *(own.abort_at or 0 for own in traffic.arrivals),
    }
    for moment in sorted(moments - {0}):
        sooner = replace(scenario, traffic=_one_step_less(traffic, moment))
        yield sooner
        for place, request in enumerate(scenario.requests):
            if request.prompt_len > 1:
                shorter = replace(request, prompt_token_ids=request.prompt_token_ids[:-1])
                yield _with_request(sooner, place, shorter)


def _one_step_less(traffic: Traffic, moment: int) -> Traffic:
    """With all that happens from a moment on one step earlier."""

    def moved(at: int) -> int:
        return at - (at >= moment)

    return replace(
        traffic,
        cache_resets=tuple(sorted({moved(at) for at in traffic.cache_resets})),
        arrivals=tuple(
            replace(own, at=moved(own.at), abort_at=None if own.abort_at is None else moved(own.abort_at))
            for own in traffic.arrivals
        ),
    )


def _shorter_models(scenario: Scenario, traffic: Traffic) -> Iterator[Scenario]:
    """With a model that takes less, and prompts cut to that, so that one of full length stays one."""
    length = traffic.max_model_len
    for fewer in sorted({1, length // 2, length - 1} - {0, length}):
        requests = (replace(own, prompt_token_ids=own.prompt_token_ids[:fewer]) for own in scenario.requests)
        yield replace(scenario, requests=tuple(requests), traffic=replace(traffic, max_model_len=fewer))


def _without_steps(scenario: Scenario) -> Iterator[Scenario]:
    steps = scenario.steps
    for size in sorted({len(steps) // 2, 1} - {0}, reverse=True):
        for start in range(len(steps), 0, -size):
            yield replace(scenario, steps=steps[: max(0, start - size)] + steps[start:])


def _plainer_options(scenario: Scenario) -> Iterator[Scenario]:
    options = scenario.options
    for name, default in _defaults(Options):
        now = getattr(options, name)
        # A level is another way to run it, but an engine's scenario has no steps that another level could take.
        if now != default and name != "hidden_size" and not (name == "level" and now == "engine"):
            yield replace(scenario, options=replace(options, **{name: default}))
            if isinstance(now, (Head, Model)):
                for part, none in _defaults(type(now)):
                    if getattr(now, part) != none:
                        yield replace(scenario, options=replace(options, **{name: replace(now, **{part: none})}))
                if isinstance(now, Head) and now.head_dtype not in (None, "float32"):
                    yield replace(scenario, options=replace(options, head=replace(now, head_dtype="float32")))
    # Four columns rather than one: a row is then told from another's at a glance.
    for hidden_size in (4, 1, 2, 3):
        if hidden_size < options.hidden_size:
            yield replace(scenario, options=replace(options, hidden_size=hidden_size))


def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    default = kind()
    return [(field.name, getattr(default, field.name)) for field in msgspec.structs.fields(kind)]


def _plainer_steps(scenario: Scenario) -> Iterator[Scenario]:
    for place, step in enumerate(scenario.steps):
        for change in _plainer_step(step, scenario):
            yield _with_step(scenario, place, change)


def _plainer_step(step: Step, scenario: Scenario) -> Iterator[Step]:
    if step.preempted:
        yield replace(step, preempted=step.preempted[:-1])
    if step.aborted:
        yield replace(step, aborted=step.aborted[:-1])
    if step.padding:
        yield replace(step, padding=step.padding // 2)
    if step.empty_group_at is not None:
        yield replace(step, empty_group_at=None)
    scheduled = step.scheduled
    for at in range(len(scheduled)):
        yield _within(replace(step, scheduled=scheduled[:at] + scheduled[at + 1 :]))
    for at, (name, count) in enumerate(scheduled):
        for fewer in sorted({1, count // 2, count - 1} - {0, count}):
            yield replace(step, scheduled=(*scheduled[:at], (name, fewer), *scheduled[at + 1 :]))
    place = {request.name: place for place, request in enumerate(scenario.requests)}
    in_order = tuple(sorted(scheduled, key=lambda entry: place[entry[0]]))
    if in_order != scheduled:
        yield replace(step, scheduled=in_order)


def _with_step(scenario: Scenario, place: int, step: Step) -> Scenario:
    return replace(scenario, steps=(*scenario.steps[:place], step, *scenario.steps[place + 1 :]))


def _shorter_prompts(scenario: Scenario) -> Iterator[Scenario]:
    for place, request in enumerate(scenario.requests):
        length = request.prompt_len
        for fewer in sorted({1, length // 2, length - 1} - {0, length}):
            shorter = replace(request, prompt_token_ids=request.prompt_token_ids[:fewer])
            yield _clamped(_with_request(scenario, place, shorter))


def _shorter_chunks(scenario: Scenario) -> Iterator[Scenario]:
    """With tokens taken out of one chunk and out of the prompt at once, so that the other chunks stay."""
    for place, request in enumerate(scenario.requests):
        start = request.num_cached_tokens
        for step_place, step in enumerate(scenario.steps):
            if request.name in step.preempted:
                start = request.num_cached_tokens
            count = dict(step.scheduled).get(request.name, 0)
            ids = request.prompt_token_ids
            for fewer in sorted({count, count - 1, count // 2, 1}, reverse=True):
                if not 0 < fewer <= min(count, len(ids) - 1):
                    continue
                shorter = replace(request, prompt_token_ids=ids[:start] + ids[start + fewer :])
                scheduled = tuple(
                    (name, left)
                    for name, tokens in step.scheduled
                    if (left := tokens - fewer if name == request.name else tokens)
                )
                thinner = _with_step(scenario, step_place, _within(replace(step, scheduled=scheduled)))
                yield _with_request(thinner, place, shorter)
            start += count


def _clamped(scenario: Scenario) -> Scenario:
    """With no more tokens scheduled than the prompts have; what no longer fits is left out."""
    left = {request.name: request.prompt_len - request.num_cached_tokens for request in scenario.requests}
    whole = dict(left)
    steps = []
    for step in scenario.steps:
        left.update({name: whole[name] for name in step.preempted})
        scheduled = []
        for name, count in step.scheduled:
            fits = min(count, left[name])
            left[name] -= fits
            if fits > 0:
                scheduled.append((name, fits))
        steps.append(_within(replace(step, scheduled=tuple(scheduled))))
    return replace(scenario, steps=tuple(steps))


def _plainer_requests(scenario: Scenario) -> Iterator[Scenario]:
    for place, request in enumerate(scenario.requests):
        for change in _plainer_request(request):
            yield _with_request(scenario, place, change)


def _plainer_request(request: Request) -> Iterator[Request]:
    for name, plain in (
        ("query", None),
        ("chunk_size", None),
        ("nan_at", None),
        ("inf_at", None),
        ("zero_at", None),
        ("num_cached_tokens", 0),
        ("dimensions", None),
        ("returned_token_ids", None),
        ("step_tag_id", None),
        ("use_activation", True),
    ):
        if getattr(request, name) != plain:
            yield replace(request, **{name: plain})
    if request.dimensions is not None and request.dimensions > 1:
        yield replace(request, dimensions=request.dimensions - 1)
    if request.task not in ("embed", "token_embed"):
        yield replace(request, task="token_embed" if request.is_token_task else "embed")
    if request.returned_token_ids is not None and len(request.returned_token_ids) > 1:
        yield replace(request, returned_token_ids=request.returned_token_ids[:1])
    if request.step_tag_id is None and any(token_id != 1 for token_id in request.prompt_token_ids):
        yield replace(request, prompt_token_ids=(1,) * request.prompt_len)


def _with_request(scenario: Scenario, place: int, request: Request) -> Scenario:
    requests = (*scenario.requests[:place], request, *scenario.requests[place + 1 :])
    return replace(scenario, requests=requests)


def _renamed(scenario: Scenario) -> Iterator[Scenario]:
    """With the first letters of the alphabet for names."""
    names = {request.name: chr(97 + place % 26) for place, request in enumerate(scenario.requests)}
    if len(names) > 26 or all(old == new for old, new in names.items()):
        return
    yield replace(
        scenario,
        requests=tuple(
            replace(request, name=names[request.name], query=names.get(request.query or "", request.query))
            for request in scenario.requests
        ),
        steps=tuple(
            replace(
                step,
                scheduled=tuple((names[name], count) for name, count in step.scheduled),
                preempted=tuple(names[name] for name in step.preempted),
                aborted=tuple(names[name] for name in step.aborted),
            )
            for step in scenario.steps
        ),
    )
