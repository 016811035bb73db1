"""The one generator of scenarios, over any source of choices.

It plays a scheduler: requests wait, run in chunks, pause, are preempted or aborted, and finish.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import msgspec

from fuzz.draws import Draw
from fuzz.mix import Mix
from fuzz.traffic import draw_traffic, hurried, played
from impl.config import Level
from oracle.scenario import (
    ACTIVATION_NAMES,
    DENSE_AND_SPARSE,
    PROBLEM_TYPES,
    DtypeName,
    Head,
    Model,
    Options,
    PoolingType,
    Request,
    Scenario,
    Step,
    Task,
    embedding_width,
    refusal,
)

TOKEN_TYPES: Final[tuple[Literal["ALL", "STEP"], ...]] = ("ALL", "STEP")
SEQUENCE_TYPES: Final[tuple[Literal["LAST", "CLS", "MEAN"], ...]] = ("LAST", "CLS", "MEAN")
CROWD: Final = (260, 400)
HUGE_PROMPT: Final = (4_200, 45_000)
"""Tokens at which tiles, two-byte offsets and the like run out."""
TASKS: Final[tuple[tuple[Task, Task], ...]] = (("embed", "classify"), ("token_embed", "token_classify"))
"""By whether it is a token task, and whether it is the second of its kind."""
BOS: Final = 101
EOS: Final = 102
MAX_ELEMENTS: Final = 1 << 19
"""Bound on all hidden states of a scenario together."""

T = TypeVar("T")


def generate(draw: Draw, mix: Mix) -> Scenario:
    """A scenario that an engine can produce, within the bounds of the mix."""
    scenario = _plain(draw, mix)
    # Drawn last and where there is the part, so that other subjects' scenarios stay as they are.
    return later_parts(draw, mix, scenario) if scenario.options.level == "pooler" else scenario


def _plain(draw: Draw, mix: Mix) -> Scenario:
    options = _options(draw, mix)
    requests = _requests(draw, mix, options)
    refused: Sequence[Request] = ()
    if options.model is not None:
        requests, refused = _verified(draw, options, options.model, requests)
    may_score = not {"late-interaction", "token-heads"} & mix.lacks and _may_score(options)
    if may_score and options.level == "pooler" and draw.chance(mix.p_late):
        requests = _documents(draw, requests)
    if options.malformed is None and requests:
        requests = _plant(draw, mix, requests)
    if options.level == "engine":
        traffic = draw_traffic(draw, mix, options, requests)
        if may_score and draw.chance(mix.p_late):
            requests = _documents(draw, requests, every=draw.integer(0, 1) == 1)
            traffic = hurried(draw, mix, requests, traffic)
        return Scenario(requests, (), options, traffic)
    scores = any(request.query is not None for request in requests)
    if not scores and _can_be_split(options, requests) and draw.chance(mix.p_traffic):
        requests, steps = played(requests, draw_traffic(draw, mix, options, requests), options)
        steps = [_reordered(draw, mix, step) for step in steps]
    else:
        steps = _steps(draw, mix, options, requests)
    return Scenario((*requests, *refused), tuple(steps), options)


def later_parts(draw: Draw, mix: Mix, scenario: Scenario) -> Scenario:
    """The scenario with what a whole layer may have besides, each in its turn."""
    options, requests = scenario.options, scenario.requests
    bare_tokens = "token-heads" in mix.lacks and any(request.is_token_task for request in requests)
    if "models-activation" not in mix.lacks and not bare_tokens and draw.chance(mix.p_models_activation):
        options = _with_activation(draw, mix, options)
    all_rows = options.tok_pooling_type == "ALL" and "ALL" in mix.pooling_types
    if "late-chunking" not in mix.lacks and all_rows and draw.chance(mix.p_late_chunking):
        requests = _chunked(draw, options, requests)
    steps: Sequence[Step] = scenario.steps
    if (
        "dense-and-sparse" not in mix.lacks
        and all_rows
        and options.model is None
        and draw.chance(mix.p_dense_and_sparse)
    ):
        served = _dense_and_sparse(draw, options, requests)
        if served != requests:
            requests = served
            options = msgspec.structs.replace(options, enable_chunked_prefill=False)
            steps = _steps(draw, mix, options, requests)
    return msgspec.structs.replace(scenario, options=options, requests=requests, steps=tuple(steps))


def _with_activation(draw: Draw, mix: Mix, options: Options) -> Options:
    """The options with a model that says which activation its logits take, in one way, the other or both."""
    head = msgspec.structs.replace(
        options.head,
        problem_type=draw.choice((None, *PROBLEM_TYPES)),
        activation_fn=None if "named-activation" in mix.lacks else draw.choice((None, *ACTIVATION_NAMES)),
    )
    return msgspec.structs.replace(options, head=head)


def _chunked(draw: Draw, options: Options, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """The requests with chunks instead of tokens for some; under verification one more, which must be refused."""
    scored = {name for request in requests if request.query for name in (request.query, request.name)}
    made = []
    for request in requests:
        if request.task == "token_embed" and request.name not in scored and draw.chance(0.6):
            request = msgspec.structs.replace(request, chunk_size=draw.integer(1, min(request.prompt_len, 40) + 1))
        made.append(request)
    others = [request.task for request in requests if request.task != "token_embed"]
    if options.model is not None and others and draw.chance(0.5):
        made.append(Request(_name(len(requests)), draw.choice(others), (10,), chunk_size=1))
    return tuple(made)


def _dense_and_sparse(draw: Draw, options: Options, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """The requests with BGE-M3's task for some of those that have one row each."""
    made = []
    for request in requests:
        if not request.is_token_task and not request.num_cached_tokens and draw.chance(0.6):
            token_ids = tuple(_with_special_tokens(draw, options, list(request.prompt_token_ids)))
            request = msgspec.structs.replace(
                request, task=DENSE_AND_SPARSE, prompt_token_ids=token_ids, dimensions=None
            )
        made.append(request)
    return tuple(made)


def _can_be_split(options: Options, requests: Sequence[Request]) -> bool:
    """Whether a scheduler may split any prompt, or none; it knows nothing of pooling types."""
    whole_only = any(not request.is_token_task for request in requests) and options.seq_pooling_type != "LAST"
    return not (options.enable_chunked_prefill and whole_only)


def _options(draw: Draw, mix: Mix) -> Options:
    token = _either(draw, TOKEN_TYPES, mix.pooling_types)
    sequence = _either(draw, SEQUENCE_TYPES, mix.pooling_types)
    level: Level = draw.choice(mix.levels)
    if level == "engine" and "LAST" in mix.pooling_types and draw.chance(mix.p_last):
        sequence = "LAST"
    dtype: DtypeName = draw.choice(mix.dtypes)
    hidden_size = draw.choice(mix.hidden_sizes)
    malformed = draw.choice((None, *mix.malformed)) if level == "method" else None
    bos_token_id, eos_token_id = _special_tokens(draw, mix) if level == "pooler" and token == "ALL" else (None, None)
    filters = bos_token_id is not None or eos_token_id is not None
    chunkable = (sequence is not None or "chunked-token-tasks" not in mix.lacks) and not (
        filters and "chunked-bos-eos-filter" in mix.lacks
    )
    return Options(
        level=level,
        rows=draw.choice(mix.rows),
        tok_pooling_type=token or "ALL",
        seq_pooling_type=sequence or "LAST",
        # An engine turns chunked prefill off for a model that needs its prompts whole.
        enable_chunked_prefill=chunkable
        and not (level == "engine" and sequence in ("CLS", "MEAN"))
        and not draw.chance(mix.p_unchunked),
        async_scheduling="async-scheduling" not in mix.lacks and draw.chance(mix.p_async),
        dtype=dtype,
        index_dtype="int64" if draw.chance(mix.p_int64) else "int32",
        hidden_size=hidden_size,
        content="float" if draw.chance(mix.p_float) else "exact",
        query_start_loc=level != "engine" and draw.chance(mix.p_query_start_loc),
        rewrites_counts=level != "engine" and malformed is None and draw.chance(mix.p_rewrite),
        reuses_states=level != "engine" and draw.chance(mix.p_reuse),
        late_copies=level != "engine" and mix.p_late_copies > 0 and draw.chance(mix.p_late_copies),
        malformed=malformed,
        head=_head(draw, mix, dtype) if level != "method" else Head(),
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        model=_model(draw, mix) if level == "pooler" else None,
        seed=draw.integer(0, 255) if draw.chance(mix.p_seed) else 0,
    )


def _special_tokens(draw: Draw, mix: Mix) -> tuple[int | None, int | None]:
    """BOS and EOS, of which some models filter one only, and some have one token for both."""
    if "bos-eos-filter" in mix.lacks or not draw.chance(mix.p_filter):
        return None, None
    return draw.choice(((BOS, EOS), (BOS, None), (None, EOS), (BOS, BOS)))


def _either(draw: Draw, kinds: tuple[T, ...], allowed: Sequence[PoolingType]) -> T | None:
    """One of the kinds that are allowed, or None if none is."""
    possible = [kind for kind in kinds if kind in allowed]
    return draw.choice(possible) if possible else None


def _head(draw: Draw, mix: Mix, dtype: DtypeName) -> Head:
    part = mix.p_head_part
    return Head(
        head_dtype=draw.choice(("float32", dtype)) if "open-head-dtype" in mix.lacks or draw.chance(part) else None,
        embedding_size=draw.integer(1, 12) if draw.chance(part) else None,
        num_labels=draw.integer(1, 4) if draw.chance(part) else None,
        logit_mean=draw.choice((0.5, -1.25)) if draw.chance(part) else None,
        logit_sigma=draw.choice((2.0, 0.75)) if "logit-sigma" not in mix.lacks and draw.chance(part) else None,
        dense="dense-head" not in mix.lacks and draw.chance(mix.p_dense),
    )


def _model(draw: Draw, mix: Mix) -> Model | None:
    if "params-verification" in mix.lacks or not draw.chance(mix.p_verified):
        return None
    listed = draw.chance(0.4)
    return Model(
        is_matryoshka=not draw.chance(0.15),
        # A list may name a width that the model does not have.
        matryoshka_dimensions=tuple(draw.integer(1, 12) for _ in range(draw.integer(1, 3))) if listed else None,
    )


def _verified(
    draw: Draw, options: Options, model: Model, requests: Sequence[Request]
) -> tuple[tuple[Request, ...], list[Request]]:
    """The requests with params of which a model may deliver some: those it can, and those it must refuse."""
    asked = []
    for request in requests:
        width = embedding_width(Scenario((), (), options), request)
        asks: dict[str, int | None] = {}
        if draw.chance(0.4):
            # Now and then more than there are, or of a task that has none.
            dimensions = draw.integer(0, 3 * width if draw.chance(0.4) else width)
            asks["dimensions"] = draw.choice((dimensions, *(model.matryoshka_dimensions or ())))
        if draw.chance(0.3):
            asks["use_activation"] = None
        if request.is_token_task and draw.chance(0.05):
            asks["step_tag_id"] = 9
        own = msgspec.structs.replace(request, **asks)
        if own.dimensions is not None and own.dimensions > width and not refusal(own, options):
            # The model can deliver them, but the request asks for fewer columns.
            own = msgspec.structs.replace(own, dimensions=None)
        asked.append(own)
    refused = [request for request in asked if refusal(request, options)]
    return tuple(request for request in asked if request not in refused), refused


def _may_score(options: Options) -> bool:
    plain = options.model is None and not options.filters_special_tokens
    return options.level != "method" and options.tok_pooling_type == "ALL" and plain


def _documents(draw: Draw, requests: tuple[Request, ...], every: bool = False) -> tuple[Request, ...]:
    """The requests with some of the token embeddings scored against others, all in whole width.

    `every` makes token embeddings of all of them, so that few requests make a query with documents.
    """
    queries: list[Request] = []
    made = []
    for request in requests:
        if request.is_token_task or every:
            request = msgspec.structs.replace(request, task="token_embed", dimensions=None)
            if queries and draw.integer(0, 2):
                query = draw.choice(queries)
                request = msgspec.structs.replace(request, query=query.name)
            else:
                queries.append(request)
        made.append(request)
    return tuple(made)


def _requests(draw: Draw, mix: Mix, options: Options) -> tuple[Request, ...]:
    bare_tokens = options.level == "pooler" and "token-heads" in mix.lacks
    token_tasks = (
        any(kind in mix.pooling_types for kind in TOKEN_TYPES)
        and not (options.enable_chunked_prefill and "chunked-token-tasks" in mix.lacks)
        and not (bare_tokens and (options.head.num_labels, options.head.logit_mean) != (None, None))
    )
    sequence_tasks = any(kind in mix.pooling_types for kind in SEQUENCE_TYPES)
    mixed = token_tasks and sequence_tasks and draw.chance(mix.p_mixed_tasks)
    token_first = token_tasks and (not sequence_tasks or draw.integer(0, 1) == 0)
    second_task = draw.chance(mix.p_second_task)
    budget = MAX_ELEMENTS // options.hidden_size
    huge = draw.choice(("crowd", "prompt")) if options.level != "engine" and draw.chance(mix.p_huge) else None
    requests: list[Request] = []
    for place in range(draw.integer(*CROWD) if huge == "crowd" else _how_many(draw, mix)):
        is_token = token_first != (mixed and draw.integer(0, 1) == 1)
        other = second_task and draw.integer(0, 1) == 1
        task = TASKS[is_token][other or (is_token and bare_tokens)]
        length = draw.integer(1, mix.max_tokens)
        if mix.long_tokens and draw.chance(mix.p_long):
            length = draw.integer(mix.max_tokens, mix.long_tokens)
        if huge == "prompt" and place == 0:
            length = draw.integer(*HUGE_PROMPT)
        length = min(length, max(1, budget))
        budget -= length
        requests.append(_request(draw, mix, options, _name(place), task, length))
    return tuple(requests)


def _how_many(draw: Draw, mix: Mix) -> int:
    if mix.min_requests == 0 and draw.chance(mix.p_no_request):
        return 0
    return draw.integer(max(1, mix.min_requests), mix.max_requests)


def _request(draw: Draw, mix: Mix, options: Options, name: str, task: Task, length: int) -> Request:
    is_token = task in ("token_embed", "token_classify")
    pooling_type = options.tok_pooling_type if is_token else options.seq_pooling_type
    # Some prompts begin alike, so that a scheduler may find one in its prefix cache.
    first = 10 + 20 * draw.integer(0, 2) if mix.p_traffic and pooling_type == "LAST" else 10
    token_ids = [first + place % 7 for place in range(length)]
    tag = columns = None
    if pooling_type == "STEP":
        if not draw.chance(0.2):
            tag = draw.choice(mix.tags)
            for at in _tagged(draw, length):
                token_ids[at] = tag
        if len(mix.tags) > 1:
            # Tags of other requests are plain tokens here.
            token_ids[draw.integer(0, length - 1)] = draw.choice(mix.tags)
        if draw.chance(mix.p_params):
            width = draw.integer(1, min(3, options.hidden_size))
            columns = tuple(draw.integer(0, options.hidden_size - 1) for _ in range(width))
    if is_token:
        token_ids = _with_special_tokens(draw, options, token_ids)
    cached = 0
    if pooling_type == "LAST" and options.level != "engine" and length > 1 and draw.chance(mix.p_prefix_hit):
        cached = draw.integer(1, length - 1)
    request = Request(
        name,
        task,
        tuple(token_ids),
        step_tag_id=tag,
        returned_token_ids=columns,
        num_cached_tokens=cached,
    )
    if options.level == "method" or not draw.chance(mix.p_params):
        return request
    dimensions = None
    if task in ("embed", "token_embed") and draw.integer(0, 1):
        dimensions = draw.integer(1, embedding_width(Scenario((), (), options), request))
    return msgspec.structs.replace(request, dimensions=dimensions, use_activation=draw.integer(0, 1) == 0)


def _with_special_tokens(draw: Draw, options: Options, token_ids: list[int]) -> list[int]:
    """The prompt with BOS and EOS at its ends, where they are filtered, more often than not."""
    special = [token_id for token_id in (options.bos_token_id, options.eos_token_id) if token_id is not None]
    if not special:
        return token_ids
    token_ids = list(token_ids)
    if draw.chance(0.7):
        token_ids[0] = special[0]
    if draw.chance(0.7):
        token_ids[-1] = special[-1]
    if draw.chance(0.2):
        # Within a prompt they are tokens like any other.
        token_ids[draw.integer(0, len(token_ids) - 1)] = draw.choice(special)
    return token_ids


def _tagged(draw: Draw, length: int) -> list[int]:
    """Positions of the step tag: any subset of a short prompt, a few places of a long one."""
    if length <= 8:
        return [at for at in range(length) if draw.chance(0.4)]
    return [draw.integer(0, length - 1) for _ in range(draw.integer(0, 4))]


def _plant(draw: Draw, mix: Mix, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """Put a row of nan, inf or zeros into one request."""
    if not draw.chance(mix.p_nonfinite):
        return requests
    place = draw.integer(0, len(requests) - 1)
    at = draw.integer(0, requests[place].prompt_len - 1)
    planted = msgspec.structs.replace(requests[place], **{draw.choice(("zero_at", "nan_at", "inf_at")): at})
    return (*requests[:place], planted, *requests[place + 1 :])


def _steps(draw: Draw, mix: Mix, options: Options, requests: Sequence[Request]) -> list[Step]:
    order = [request.name for request in requests]
    left = {request.name: request.prompt_len - request.num_cached_tokens for request in requests}
    whole = dict(left)
    pooling_types = Scenario((), (), options).pooling_type
    chunkable = {request.name: pooling_types(request) not in ("CLS", "MEAN") for request in requests}
    query_of = {request.name: request.query for request in requests if request.query is not None}
    # Clients wait for a query before they send its documents; who does not may be refused.
    waits = query_of if query_of and not draw.chance(mix.p_partial) else {}
    events_left = 4
    lost: set[str | None] = set()
    steps: list[Step] = []
    if draw.chance(mix.p_empty_step):
        steps.append(Step(()))
    while order:
        preempted, aborted = [], []
        # A document whose query was aborted never comes.
        order = [name for name in order if waits.get(name) not in lost]
        for name in order:
            if waits.get(name) in order:
                continue
            if events_left and left[name] < whole[name] and draw.chance(mix.p_preempt):
                preempted.append(name)
            elif events_left and draw.chance(mix.p_abort):
                aborted.append(name)
                if name in query_of and draw.integer(0, 1):
                    # Its client is gone, and with it the other documents.
                    aborted += [other for other in order if query_of.get(other) == query_of[name] and other != name]
                    break
        events_left -= bool(preempted or aborted)
        for name in preempted:
            left[name] = whole[name]
        lost.update(aborted)
        order = [name for name in order if name not in aborted]
        if len(order) > 1 and draw.chance(mix.p_reorder):
            order = _shuffled(draw, order)
        scheduled: list[tuple[str, int]] = []
        ready = [name for name in order if waits.get(name) not in order] if waits else order
        for place, name in enumerate(ready):
            must = not scheduled and place == len(ready) - 1
            # A crowd is there to be in one step together.
            if not must and len(order) < CROWD[0] and draw.chance(mix.p_pause):
                continue
            count = left[name]
            if count > 1 and options.enable_chunked_prefill and _is_split(draw, mix, chunkable[name]):
                count = draw.integer(1, count)
            scheduled.append((name, count))
        for name, count in scheduled:
            left[name] -= count
        order = [name for name in order if left[name]]
        steps.append(
            Step(
                tuple(scheduled),
                tuple(preempted),
                tuple(aborted),
                draw.integer(1, 3) if draw.chance(mix.p_padding) else 0,
                draw.integer(0, len(scheduled))
                if options.level == "method" and draw.chance(mix.p_empty_group)
                else None,
            )
        )
    return steps


def _is_split(draw: Draw, mix: Mix, chunkable: bool) -> bool:
    """Whether not all of a request's remaining tokens are scheduled; CLS and MEAN may refuse that."""
    return not draw.chance(mix.p_whole) if chunkable else draw.chance(mix.p_partial)


def _reordered(draw: Draw, mix: Mix, step: Step) -> Step:
    """The step in another batch order, for a batch is not in the scheduler's order."""
    if len(step.scheduled) < 2 or not draw.chance(mix.p_reorder):
        return step
    return msgspec.structs.replace(step, scheduled=tuple(_shuffled(draw, step.scheduled)))


def _shuffled(draw: Draw, items: Sequence[T]) -> list[T]:
    """Another order, drawn by insertion; the order as it was is the simplest."""
    shuffled: list[T] = []
    for item in items:
        shuffled.insert(len(shuffled) - draw.integer(0, len(shuffled)), item)
    return shuffled


def _name(place: int) -> str:
    return chr(97 + place % 26) + (str(place // 26) if place >= 26 else "")
