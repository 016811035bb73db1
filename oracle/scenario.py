"""What is run: requests, steps and options, as plain frozen data with a versioned JSON form.

A scenario says everything that a run depends on, so it can be generated, run, shrunk, saved and
replayed. It is data only: how it is drawn is `fuzz.generator`, how it is run is `fuzz.runner`.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

Task: TypeAlias = Literal["embed", "classify", "token_embed", "token_classify", "embed&token_classify"]
PoolingType: TypeAlias = Literal["ALL", "STEP", "CLS", "LAST", "MEAN"]
Malformed: TypeAlias = Literal["missing-scheduled-counts", "counts-on-device", "gap", "short-rows"]
DtypeName: TypeAlias = Literal["float32", "float16", "bfloat16"]

ProblemType: TypeAlias = Literal["regression", "single_label_classification", "multi_label_classification"]
ActivationName: TypeAlias = Literal["Identity", "Sigmoid", "Softmax", "Tanh"]

PROBLEM_TYPES: Final[tuple[ProblemType, ...]] = get_args(ProblemType)
ACTIVATION_NAMES: Final[tuple[ActivationName, ...]] = get_args(ActivationName)
TOKEN_TASKS: Final = ("token_embed", "token_classify")
DENSE_AND_SPARSE: Final[Literal["embed&token_classify"]] = "embed&token_classify"
"""The task of BGE-M3: one vector, and a score for each token behind it."""
POOLING_TYPES: Final[tuple[PoolingType, ...]] = get_args(PoolingType)
MALFORMED: Final[tuple[Malformed, ...]] = get_args(Malformed)
VERSION: Final = 1
LINE_LENGTH: Final = 110
MAX_MODEL_LEN: Final = 2048

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class ScenarioError(ValueError):
    """A scenario that can't be read or can't happen. The message holds the offending field's path."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request: prompt token ids, a task, and the pooling params that go with it."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    task: Task
    prompt_token_ids: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    dimensions: Natural | None = None
    use_activation: bool | None = True
    """None leaves it to verification, whose default is True."""
    step_tag_id: Natural | None = None
    returned_token_ids: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)] | None = None
    chunk_size: Positive | None = None
    """Late chunking: the rows of token_embed are the means of so many tokens each, the last of what is left."""
    query: str | None = None
    """Name of the request whose rows this one's are scored against, as a document (late interaction)."""
    num_cached_tokens: Natural = 0
    """Tokens found in the prefix cache: the engine never computes their rows."""
    nan_at: Natural | None = None
    """Position whose row is planted with nan; it may not reach another request."""
    inf_at: Natural | None = None
    zero_at: Natural | None = None
    """Position whose row is all zeros, which a norm must survive."""

    @property
    def prompt_len(self) -> int:
        """Number of prompt tokens."""
        return len(self.prompt_token_ids)

    @property
    def is_token_task(self) -> bool:
        """Whether the task hands back one row a token rather than one row a request."""
        return self.task in TOKEN_TASKS


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One forward pass: who is scheduled, in batch order, with how many tokens."""

    scheduled: tuple[tuple[str, Positive], ...]
    preempted: tuple[str, ...] = ()
    """Requests put back to their first uncached token before this step; the caller clears their state."""
    aborted: tuple[str, ...] = ()
    """Requests that leave for good before this step."""
    padding: Natural = 0
    """Rows of no request that follow the scheduled ones in `hidden_states`."""
    empty_group_at: Natural | None = None
    """Place in the batch at which an empty subgroup is handed over besides the real ones."""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The learned layers after pooling; their weights follow from sizes and seed (`oracle.rows`)."""

    head_dtype: DtypeName | None = None
    embedding_size: Positive | None = None
    """Width after the projector of the embed tasks; None: no projector."""
    num_labels: Positive | None = None
    """Width after the classifier of the classify tasks; None: no classifier."""
    logit_mean: float | None = None
    logit_sigma: float | None = None
    dense: bool = False
    """A dense layer with a tanh in front of the classifier of `classify`, as BERT's pooler has."""
    problem_type: ProblemType | None = None
    """What the model's config says it was trained for, which decides the activation of its logits."""
    activation_fn: ActivationName | None = None
    """The module of torch.nn that a cross-encoder's config names for that, where it gives no problem type."""

    @property
    def names_an_activation(self) -> bool:
        """Whether the model's config says anything of the activation of its logits."""
        return self.problem_type is not None or self.activation_fn is not None


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model says of its embeddings, against which pooling params are verified."""

    is_matryoshka: bool = True
    """Whether its embeddings may be cut."""
    matryoshka_dimensions: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] | None = None
    """To which widths; None: to any."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for every step of a scenario."""

    level: Literal["method", "pooler", "engine"] = "method"
    """`method`: pooled rows as they are. `pooler`: the whole layer, with heads and dispatch over tasks.
    `engine`: scheduler, batch and whole layer; the scheduler makes the steps, from the scenario's traffic."""
    rows: Literal["group", "step"] = "group"
    """What a sub-pooler is handed: its group's own rows, or the step's rows with absolute indices."""
    tok_pooling_type: Literal["ALL", "STEP"] = "ALL"
    seq_pooling_type: Literal["CLS", "LAST", "MEAN"] = "LAST"
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    """The next step may start before this one's outputs are read, so outputs must own their rows."""
    dtype: DtypeName = "float32"
    index_dtype: Literal["int32", "int64"] = "int32"
    """Dtype of the counts and lengths that the caller passes."""
    hidden_size: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 4
    content: Literal["exact", "float"] = "exact"
    """`exact`: small integers, exact in every dtype. `float`: realistic values."""
    query_start_loc: bool = False
    """Whether the caller passes `query_start_loc_gpu` or leaves the offsets to the metadata."""
    rewrites_counts: bool = False
    """Whether the caller rewrites its host arrays of counts and lengths once the cursor is built."""
    reuses_states: bool = False
    """Whether a request that starts is given the pooling states of one that has left."""
    late_copies: bool = False
    """On the simulated device: non-blocking copies land as late as a device may let them."""
    malformed: Malformed | None = None
    """A mistake of the caller, which the pooler must reject or survive."""
    head: Head = Head()
    bos_token_id: Natural | None = None
    """Token whose row, at the start of a prompt, is no result of a token task; None: no such filter."""
    eos_token_id: Natural | None = None
    """The same at the end of a prompt."""
    model: Model | None = None
    """Each request's params are verified against this model before any is scheduled; None: they aren't."""
    seed: Natural = 0

    @property
    def filters_special_tokens(self) -> bool:
        """Whether token tasks go through the filter of BOS and EOS."""
        return self.bos_token_id is not None or self.eos_token_id is not None


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a request comes, how urgent it is, and when its client goes."""

    at: Natural = 0
    """The engine step before which it arrives."""
    priority: int = 0
    """Under the priority policy, lower is served first."""
    abort_at: Natural | None = None
    """The engine step before which its client is gone; that of a query or document takes all of them with it."""
    waits: bool = True
    """A document is sent once its query is answered; one that doesn't wait may be refused."""


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What reaches an engine over time, and how the engine is set up."""

    arrivals: tuple[Arrival, ...]
    """One a request, in the order of the scenario's requests."""
    token_budget: Positive = 16
    """Tokens a step at most."""
    max_num_seqs: Positive = 4
    """Requests a step at most."""
    max_model_len: Positive = MAX_MODEL_LEN
    """Tokens of a prompt at most."""
    num_blocks: Positive = 64
    """KV cache blocks, one of which is the null block and serves nobody."""
    block_size: Positive = 4
    long_prefill_token_threshold: Natural = 0
    """Tokens of one request a step at most, while others are there too; 0: no bound of its own."""
    prefix_caching: bool = False
    priority_policy: bool = False
    cache_resets: tuple[Natural, ...] = ()
    """Engine steps before which the prefix cache is reset, running requests preempted."""

    @property
    def last_event(self) -> int:
        """The last engine step before which something reaches the engine."""
        arrivals = self.arrivals
        return max([0, *self.cache_resets, *(a.at for a in arrivals), *(a.abort_at or 0 for a in arrivals)])


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Requests, steps and options: the unit that is generated, run, shrunk, saved and replayed.

    At level `engine` there are no steps but `traffic`, of which the engine's scheduler makes the steps.
    """

    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    options: Options = Options()
    traffic: Traffic | None = None
    version: int = VERSION

    def __reduce__(self) -> tuple[Any, ...]:
        # msgspec leaves out a default only if it is that very object, which a pickled string isn't any more.
        return _decoded, (msgspec.json.encode(self),)

    def pooling_type(self, request: Request) -> PoolingType:
        """The pooling type that serves the request's task."""
        return self.options.tok_pooling_type if request.is_token_task else self.options.seq_pooling_type


def _decoded(text: bytes) -> Scenario:
    return msgspec.json.decode(text, type=Scenario)


def dumps(scenario: Scenario) -> str:
    """The scenario as readable JSON, version always included."""
    return dump_json(to_builtins(scenario))


def to_builtins(scenario: Scenario) -> dict[str, Any]:
    """The scenario as plain data for JSON, which `from_builtins` reads; version always included."""
    return {"version": VERSION, **msgspec.to_builtins(scenario)}


def loads(text: str | bytes) -> Scenario:
    """Read a scenario from JSON.

    Raises:
        ScenarioError: not JSON, another version, an unknown key, or a value that can't be.
    """
    return from_builtins(parse_json(text))


def dump_json(data: Any) -> str:
    """Readable JSON: what fits on a line stays on it, and so does any list of plain values."""
    return _layout(data, "") + "\n"


def _layout(data: Any, indent: str) -> str:
    line = json.dumps(data)
    if not isinstance(data, (dict, list, tuple)) or len(indent) + len(line) <= LINE_LENGTH:
        return line
    inner = indent + " "
    if isinstance(data, dict):
        parts = [f"{json.dumps(key)}: {_layout(value, inner)}" for key, value in data.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    if not any(isinstance(item, (dict, list, tuple)) for item in data):
        return line
    return "[\n" + ",\n".join(inner + _layout(item, inner) for item in data) + f"\n{indent}]"


def parse_json(text: str | bytes) -> Any:
    """Decode JSON.

    Raises:
        ScenarioError: the text is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"not JSON: {error}") from None


def check_version(data: Any, known: int, what: str) -> None:
    """Refuse data written by another version of the format.

    Raises:
        ScenarioError: no version, or one that is not `known`.
    """
    version = data.get("version") if isinstance(data, dict) else None
    if version != known:
        raise ScenarioError(f"{what} has version {version!r} at `$.version`, but this poolproof reads version {known}")


T = TypeVar("T")


def convert(data: Any, kind: type[T]) -> T:
    """Turn decoded JSON into `kind`.

    Raises:
        ScenarioError: an unknown key or an impossible value, with its path.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(str(error)) from None


def from_builtins(data: Any) -> Scenario:
    """Read a scenario from decoded JSON.

    Raises:
        ScenarioError: see `loads`.
    """
    check_version(data, VERSION, "the scenario")
    scenario = convert(data, Scenario)
    for problem in problems(scenario):
        raise ScenarioError(problem)
    return scenario


def problems(scenario: Scenario) -> Iterator[str]:
    """Why the scenario can't happen in an engine, each with the path of the offending field."""
    if scenario.options.malformed and scenario.options.level != "method":
        yield "malformed input is for level `method` only - at `$.options.malformed`"
    if scenario.options.filters_special_tokens:
        at = "bos_token_id" if scenario.options.bos_token_id is not None else "eos_token_id"
        if scenario.options.level != "pooler":
            yield f"the filter of BOS and EOS is for level `pooler` only - at `$.options.{at}`"
        elif scenario.options.tok_pooling_type != "ALL":
            yield f"the filter of BOS and EOS needs all of a prompt's rows - at `$.options.{at}`"
    if scenario.options.model is not None and scenario.options.level != "pooler":
        yield "params are verified at level `pooler` only - at `$.options.model`"
    if scenario.options.level == "engine" and scenario.options.head.names_an_activation:
        yield "an engine's head has the default activation - at `$.options.head`"
    yield from _traffic_problems(scenario)
    yield from _document_problems(scenario)
    yield from _chunking_problems(scenario)
    yield from _dense_and_sparse_problems(scenario)
    yield from _request_problems(scenario)
    yield from _step_problems(scenario)


def _traffic_problems(scenario: Scenario) -> Iterator[str]:
    traffic = scenario.traffic
    if scenario.options.level != "engine":
        if traffic is not None:
            yield "traffic is for level `engine` only - at `$.traffic`"
        return
    if traffic is None or scenario.steps:
        yield "an engine makes its own steps, from traffic - at `$.steps`"
        return
    if len(traffic.arrivals) != len(scenario.requests):
        yield (
            f"{len(traffic.arrivals)} arrivals for {len(scenario.requests)} requests: there must be one each "
            "- at `$.traffic.arrivals`"
        )
    options = scenario.options
    if traffic.long_prefill_token_threshold and not options.enable_chunked_prefill:
        yield "chunked prefill is off, so no prompt may be cut - at `$.traffic.long_prefill_token_threshold`"
    if options.seq_pooling_type != "LAST" and (traffic.prefix_caching or options.enable_chunked_prefill):
        yield (
            f"an engine that serves {options.seq_pooling_type} turns prefix caching and chunked prefill off "
            "- at `$.options.seq_pooling_type`"
        )
    room = (traffic.num_blocks - 1) * traffic.block_size
    for index, request in enumerate(scenario.requests):
        at = f"$.requests[{index}].prompt_token_ids"
        if request.prompt_len > room:
            yield f"the KV cache has room for {room} tokens, not for a prompt of {request.prompt_len} - at `{at}`"
        if request.prompt_len > traffic.max_model_len:
            yield (
                f"a prompt of {request.prompt_len} tokens is longer than the model's {traffic.max_model_len} "
                f"- at `{at}`"
            )
        if not scenario.options.enable_chunked_prefill and request.prompt_len > traffic.token_budget:
            yield (
                f"chunked prefill is off, so a prompt of {request.prompt_len} tokens never fits the budget of "
                f"{traffic.token_budget} - at `{at}`"
            )


def _request_problems(scenario: Scenario) -> Iterator[str]:
    options = scenario.options
    seen: set[str] = set()
    for index, request in enumerate(scenario.requests):
        at = f"$.requests[{index}]"
        if request.name in seen:
            yield f"two requests are called {request.name!r} - at `{at}.name`"
        seen.add(request.name)
        if request.num_cached_tokens >= request.prompt_len:
            yield (
                f"{request.num_cached_tokens} of {request.prompt_len} prompt tokens are cached, but at least "
                f"one must be computed - at `{at}.num_cached_tokens`"
            )
        if request.num_cached_tokens and scenario.pooling_type(request) != "LAST":
            yield (
                f"only LAST pooling can do without the rows of cached tokens, not "
                f"{scenario.pooling_type(request)} - at `{at}.num_cached_tokens`"
            )
        for field in ("nan_at", "inf_at", "zero_at"):
            position = getattr(request, field)
            if position is not None and position >= request.prompt_len:
                yield f"position {position} is past the prompt's {request.prompt_len} tokens - at `{at}.{field}`"
        for token_id in request.returned_token_ids or ():
            if token_id >= options.hidden_size:
                yield f"column {token_id} is past the hidden size {options.hidden_size} - at `{at}.returned_token_ids`"
        if request.use_activation is None and options.model is None:
            yield f"without verification a flag must be True or False - at `{at}.use_activation`"
        if refusal(request, options):
            continue
        if request.dimensions is not None and not 1 <= request.dimensions <= embedding_width(scenario, request):
            yield (
                f"{request.dimensions} dimensions are not from 1 to the embedding's "
                f"{embedding_width(scenario, request)} - at `{at}.dimensions`"
            )


def _document_problems(scenario: Scenario) -> Iterator[str]:
    options = scenario.options
    requests = {request.name: request for request in scenario.requests}
    for index, request in enumerate(scenario.requests):
        if request.query is None:
            continue
        at = f"$.requests[{index}].query"
        query = requests.get(request.query)
        if options.level == "method" or options.tok_pooling_type != "ALL":
            yield f"documents are scored by whole layers or engines, and under ALL only - at `{at}`"
        elif options.filters_special_tokens or options.model is not None:
            yield f"documents are scored without a filter of BOS and EOS and without verification - at `{at}`"
        elif query is None or query.query is not None:
            yield f"{request.query!r} is no request that documents may be scored against - at `{at}`"
        elif {(own.task, own.dimensions) for own in (query, request)} != {("token_embed", None)}:
            yield f"{request.name!r} and its query must be of task token_embed, in whole width - at `{at}`"


def _chunking_problems(scenario: Scenario) -> Iterator[str]:
    options = scenario.options
    scored_against = {request.query for request in scenario.requests}
    for index, request in enumerate(scenario.requests):
        if request.chunk_size is None:
            continue
        at = f"$.requests[{index}].chunk_size"
        if options.level != "pooler" or options.tok_pooling_type != "ALL":
            yield f"late chunking is for level `pooler` and under ALL only - at `{at}`"
        elif request.query is not None or request.name in scored_against:
            yield f"the rows of late interaction are those of tokens, not of chunks - at `{at}`"
        elif request.task != "token_embed" and options.model is None:
            yield f"without verification late chunking is for token_embed, not for {request.task} - at `{at}`"


def _dense_and_sparse_problems(scenario: Scenario) -> Iterator[str]:
    options = scenario.options
    for index, request in enumerate(scenario.requests):
        if request.task != DENSE_AND_SPARSE:
            continue
        at = f"$.requests[{index}].task"
        if options.level != "pooler" or options.tok_pooling_type != "ALL" or options.enable_chunked_prefill:
            yield f"{request.task} is for level `pooler`, under ALL and without chunked prefill - at `{at}`"
        elif options.model is not None:
            yield f"the params of {request.task} are not verified - at `{at}`"
        elif request.dimensions is not None or request.num_cached_tokens:
            yield f"{request.task} has the rows of all tokens, in whole width - at `{at}`"


def embedding_width(scenario: Scenario, request: Request) -> int:
    """Width of the request's rows before `dimensions` cuts them."""
    options = scenario.options
    if options.level != "method" and options.head.embedding_size is not None:
        return options.head.embedding_size
    if options.tok_pooling_type == "STEP" and request.is_token_task and request.returned_token_ids:
        return len(request.returned_token_ids)
    return options.hidden_size


def refusal(request: Request, options: Options) -> str:
    """Why verification must refuse the request's params; empty if it must accept them, or there is none."""
    model, dimensions = options.model, request.dimensions
    if model is None:
        return ""
    if options.tok_pooling_type != "STEP" and (request.step_tag_id, request.returned_token_ids) != (None, None):
        return "steps are asked of a model that doesn't pool by steps"
    if request.chunk_size is not None and request.task != "token_embed":
        return f"late chunking is asked of {request.task}, which has no embeddings of tokens"
    if dimensions is None:
        return ""
    if request.task not in ("embed", "token_embed"):
        return f"dimensions are asked of {request.task}, which has no embeddings"
    if not model.is_matryoshka:
        return "dimensions are asked of embeddings that can't be cut"
    width = model_width(options)
    if not 1 <= dimensions <= width:
        return f"{dimensions} dimensions are asked of embeddings that have {width}"
    if model.matryoshka_dimensions is not None and dimensions not in model.matryoshka_dimensions:
        told = ", ".join(map(str, model.matryoshka_dimensions))
        return f"{dimensions} dimensions are asked of embeddings that may be cut to {told} only"
    return ""


def model_width(options: Options) -> int:
    """Width of the embeddings that the options' model says it has."""
    return options.hidden_size if options.head.embedding_size is None else options.head.embedding_size


def _step_problems(scenario: Scenario) -> Iterator[str]:
    requests = {request.name: request for request in scenario.requests}
    computed = {request.name: request.num_cached_tokens for request in scenario.requests}
    gone: set[str] = set()
    for index, step in enumerate(scenario.steps):
        at = f"$.steps[{index}]"
        for field in ("preempted", "aborted"):
            for name in getattr(step, field):
                if name not in requests:
                    yield f"there is no request {name!r} - at `{at}.{field}`"
                    return
                if name in gone:
                    yield f"request {name!r} has already left - at `{at}.{field}`"
                computed[name] = requests[name].num_cached_tokens
        gone.update(step.aborted)
        if step.empty_group_at is not None and step.empty_group_at > len(step.scheduled):
            yield f"the batch has only {len(step.scheduled)} requests - at `{at}.empty_group_at`"
        in_step: set[str] = set()
        for place, (name, num_tokens) in enumerate(step.scheduled):
            here = f"{at}.scheduled[{place}]"
            if name not in requests:
                yield f"there is no request {name!r} - at `{here}`"
                return
            left = requests[name].prompt_len - computed[name]
            if name in in_step:
                yield f"request {name!r} is scheduled twice in one step - at `{here}`"
            if refused := refusal(requests[name], scenario.options):
                yield f"request {name!r} never gets past verification: {refused} - at `{here}`"
            if name in gone:
                yield f"request {name!r} has already left - at `{here}`"
            elif num_tokens > left:
                yield f"request {name!r} has {left} tokens left, not {num_tokens} - at `{here}`"
            elif num_tokens < left and not scenario.options.enable_chunked_prefill:
                yield (
                    f"request {name!r} is scheduled for {num_tokens} of {left} tokens, but chunked prefill is off "
                    f"- at `{here}`"
                )
            in_step.add(name)
            computed[name] += num_tokens
            if computed[name] >= requests[name].prompt_len:
                gone.add(name)
