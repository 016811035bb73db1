"""What is timed: scenarios of which one call is measured, as plain frozen data.

Nothing here runs or times anything. Sizes are bounded so that a workload's rows take 64 MiB at most.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import msgspec
import numpy as np

from oracle.scenario import Head, Options, Request, Scenario, Step, Task

Work = Literal["pool", "build-cursor", "slice-cursor"]
Limit = Literal["views", "read"]
"""views: as many tensor objects as there are requests, made in C++. read: each byte of the rows read once."""

BATCHES: Final = (1, 8, 32, 64, 256, 1024)
"""Requests in a step of the grid."""
_LONGEST: Final = {"short": 16, "ragged": 128, "long": 512}
_HIDDEN_SIZE: Final = {"short": 1024, "ragged": 256, "long": 64}
_TAG: Final = 1
_TAG_EVERY: Final = 16
_CHUNKS: Final = 8
"""Steps over which the prompts of a chunked workload are spread, so that one in eight finishes in each."""


@dataclass(frozen=True)
class Workload:
    """A scenario of which one call is timed."""

    name: str
    about: str
    scenario: Scenario
    work: Work = "pool"
    call: int = -1
    """Which of the scenario's calls of a pooler is timed, in the order in which they are made."""
    limit: Limit | None = None
    """What no implementation can beat."""

    @property
    def num_requests(self) -> int:
        """Requests of the scenario."""
        return len(self.scenario.requests)

    @property
    def family(self) -> str | None:
        """What it has in common with workloads of other sizes; None if it comes in one size alone."""
        family, _, size = self.name.rpartition("-")
        return family if size == str(self.num_requests) else None


def workloads() -> dict[str, Workload]:
    """All workloads by name; the published ones first."""
    return {workload.name: workload for workload in (*_published(), *_grid(), *_others())}


def _published() -> Iterator[Workload]:
    """The workload of the published change: a subgroup in the middle of a step."""
    num_tokens, num_requests = 64 * 128, 64
    cuts = np.random.default_rng(0).choice(np.arange(1, num_tokens), num_requests - 1, replace=False)
    varying = [stop - start for start, stop in pairwise([0, *sorted(cuts.tolist()), num_tokens])]
    for name, lens, told in (
        ("published", [128] * num_requests, "of 128 tokens"), ("published-varying", varying, "of varying length")
    ):  # fmt: skip
        requests = _requests(lens, lambda at: "token_classify" if 16 <= at < 48 else "embed")
        about = f"ALL of 32 token_classify requests amid 64 {told}, hidden size 4096, bfloat16"
        yield Workload(name, about, _one_step(requests, Options(hidden_size=4096)), call=1, limit="views")


def _grid() -> Iterator[Workload]:
    """ALL by batch size and prompt length, with chunked prefill on and off."""
    for shape in _LONGEST:
        for batch in BATCHES:
            requests = _requests(_lens(shape, batch), lambda _: "token_embed")
            options = Options(hidden_size=_HIDDEN_SIZE[shape])
            about = f"ALL of {batch} {shape} prompts"
            yield Workload(f"all-{shape}-{batch}", about, _one_step(requests, options), limit="views")
            if shape == "short":
                unchunked = Options(hidden_size=_HIDDEN_SIZE[shape], enable_chunked_prefill=False)
                about += ", chunked prefill off"
                yield Workload(f"all-off-{batch}", about, _one_step(requests, unchunked), limit="views")


def _others() -> Iterator[Workload]:
    for batch in (1, 8, 32, 256):
        lens = _lens("ragged", batch)
        for name in ("cls", "last", "mean"):
            scenario = _one_step(_requests(lens, lambda _: "embed"), _sequence_options(name, 1024))
            limit: Limit | None = "read" if name == "mean" else None
            yield Workload(f"{name}-{batch}", f"{name.upper()} of {batch} ragged prompts", scenario, limit=limit)
        tagged = _requests(lens, lambda _: "token_classify", step_tag_id=_TAG)
        options = Options(hidden_size=1024, tok_pooling_type="STEP")
        about = f"STEP of {batch} ragged prompts, one tag in {_TAG_EVERY} tokens"
        yield Workload(f"step-{batch}", about, _one_step(tagged, options))
        columns = _requests(lens, lambda _: "token_classify", step_tag_id=_TAG, returned_token_ids=(3, 5))
        about = f"{about}, two columns of 1024 returned"
        yield Workload(f"step-columns-{batch}", about, _one_step(columns, options))
        yield from _with_heads(batch, lens)
        yield _chunked(batch)
        yield _chunked(batch, async_scheduling=True)
        owned = Options(hidden_size=256, async_scheduling=True)
        scenario = _one_step(_requests(lens, lambda _: "token_embed"), owned)
        yield Workload(f"all-async-{batch}", f"ALL of {batch} ragged prompts, async scheduling", scenario)
    even = _one_step(_requests([128] * 32, lambda _: "embed"), _sequence_options("mean", 4096))
    yield Workload("mean-published", "MEAN of 32 prompts of 128 tokens, hidden size 4096", even, limit="read")
    for batch in (32, 256):
        yield from _mixed(batch)


def _mixed(batch: int) -> Iterator[Workload]:
    """Tasks in turn, and what a dispatcher does to the metadata."""
    requests = _requests(_lens("short", batch), lambda at: "token_embed" if at % 2 else "embed")
    scenario = _one_step(requests, Options(level="pooler", hidden_size=256))
    yield Workload(f"alternating-{batch}", f"ALL and LAST in turn, {batch} requests, no head", scenario)
    yield Workload(f"build-cursor-{batch}", f"building the cursor of {batch} requests", scenario, "build-cursor")
    yield Workload(f"slice-cursor-{batch}", f"half of the metadata of {batch} requests", scenario, "slice-cursor")


def _with_heads(batch: int, lens: Sequence[int]) -> Iterator[Workload]:
    """The whole layer of one task, with one set of params for all requests or a different one each."""
    head = Head(head_dtype="float32", embedding_size=64, num_labels=4)
    for task in ("token_embed", "token_classify", "embed"):
        for mixed in (False, True):
            requests = tuple(
                Request(
                    request.name,
                    request.task,
                    request.prompt_token_ids,
                    use_activation=not (mixed and at % 2),
                    dimensions=(32, 16)[at // 2 % 2] if mixed and "embed" in task else None,
                )
                for at, request in enumerate(_requests(lens, lambda _, task=task: task))  # type: ignore[misc]
            )
            options = Options(level="pooler", hidden_size=256, head=head)
            kind = "mixed" if mixed else "uniform"
            name = f"{task.replace('_', '-')}-{kind}-{batch}"
            yield Workload(name, f"{task} with its head, {batch} requests, {kind} params", _one_step(requests, options))


def _chunked(batch: int, async_scheduling: bool = False) -> Workload:
    """A step in which one request in eight gets its last chunk, and the others one before it."""
    requests = _requests([_CHUNKS * 16] * batch, lambda _: "token_embed")
    # Request i starts i steps late, in rounds of eight, and the last step shown is the one that is timed.
    steps = [
        Step(tuple((request.name, 16) for at, request in enumerate(requests) if at % _CHUNKS <= number))
        for number in range(_CHUNKS)
    ]
    options = Options(hidden_size=256, async_scheduling=async_scheduling)
    name = f"chunked{'-async' if async_scheduling else ''}-{batch}"
    about = f"ALL of {batch} chunks of 16 tokens, one in eight the last of its prompt"
    about += ", async scheduling" if async_scheduling else ""
    return Workload(name, about, _in_bfloat16(Scenario(requests, tuple(steps), options)))


def _lens(shape: str, batch: int) -> list[int]:
    if shape != "ragged":
        return [_LONGEST[shape]] * batch
    return np.random.default_rng(batch).integers(1, _LONGEST[shape] + 1, batch).tolist()  # type: ignore[no-any-return]


def _requests(lens: Sequence[int], task: Callable[[int], Task], **params: object) -> tuple[Request, ...]:
    return tuple(
        Request(f"r{at}", task(at), tuple(_TAG if place % _TAG_EVERY == 0 else 2 for place in range(length)), **params)  # type: ignore[arg-type]
        for at, length in enumerate(lens)
    )


def _sequence_options(pooling_type: str, hidden_size: int) -> Options:
    return Options(seq_pooling_type=pooling_type.upper(), hidden_size=hidden_size)  # type: ignore[arg-type]


def _one_step(requests: Sequence[Request], options: Options) -> Scenario:
    step = Step(tuple((request.name, request.prompt_len) for request in requests))
    return _in_bfloat16(Scenario(tuple(requests), (step,), options))


def _in_bfloat16(scenario: Scenario) -> Scenario:
    options = msgspec.structs.replace(scenario.options, dtype="bfloat16")
    return msgspec.structs.replace(scenario, options=options)
