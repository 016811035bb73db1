"""Ladders: scenarios whose steps differ in batch size alone, to see what a request costs.

Each has a step, or a step for each chunk, at every batch size of `LADDER`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from fuzz.generator import SEQUENCE_TYPES
from impl.config import Subject
from oracle.contracts import LADDER
from oracle.scenario import Options, Request, Scenario, Step, Task

HIDDEN_SIZE: Final = 64
PROMPT_TOKENS: Final = (1, 9, 2, 9)
"""Prompt of every request; 9 is the step tag."""
TAGGED: Final[dict[str, Any]] = {"step_tag_id": 9}


@dataclass(frozen=True)
class Ladder:
    """A scenario that climbs.

    `parts` names the steps of a rung in turn; `tasks` is what its requests ask for in turn.
    """

    name: str
    scenario: Scenario
    parts: tuple[str, ...] = ("",)


def ladders(subject: Subject) -> Iterator[Ladder]:
    """One ladder for each pooling type and mix of tasks that the subject serves."""
    if "method" in subject.levels:
        if "ALL" in subject.supports:
            yield _ladder(subject, "ALL", ("token_embed",), Options())
            yield _ladder(subject, "ALL", ("token_embed",), Options(), parts=("first chunk", "last chunk"))
        if "STEP" in subject.supports:
            step = Options(tok_pooling_type="STEP")
            yield _ladder(subject, "STEP", ("token_classify",), step, params=TAGGED)
            columns = {**TAGGED, "returned_token_ids": (3, 0, 7)}
            yield _ladder(subject, "STEP, some columns", ("token_classify",), step, params=columns)
        for kind in SEQUENCE_TYPES:
            if kind in subject.supports:
                yield _ladder(subject, kind, ("embed",), Options(seq_pooling_type=kind))
    if "pooler" in subject.levels:
        yield from _of_whole_poolers(subject)


def _of_whole_poolers(subject: Subject) -> Iterator[Ladder]:
    kinds = [kind for kind in SEQUENCE_TYPES if kind in subject.supports]
    whole = Options(level="pooler", seq_pooling_type=kinds[0] if kinds else "LAST")
    if "ALL" in subject.supports:
        yield _ladder(subject, "pooler, token_embed", ("token_embed",), whole)
    if kinds:
        yield _ladder(subject, "pooler, embed", ("embed",), whole)
    if kinds and "ALL" in subject.supports:
        yield _ladder(subject, "pooler, both in turn", ("token_embed", "embed"), whole)


def _ladder(
    subject: Subject,
    name: str,
    tasks: tuple[Task, ...],
    options: Options,
    parts: tuple[str, ...] = ("",),
    params: Mapping[str, Any] = MappingProxyType({}),
) -> Ladder:
    requests: list[Request] = []
    steps: list[Step] = []
    tokens = len(PROMPT_TOKENS) // len(parts)
    for size in LADDER:
        rung = [Request(f"{size}.{at}", tasks[at % len(tasks)], PROMPT_TOKENS, **params) for at in range(size)]
        requests += rung
        steps += [Step(tuple((request.name, tokens) for request in rung)) for _ in parts]
    options = msgspec.structs.replace(options, rows=subject.rows[0], hidden_size=HIDDEN_SIZE)
    return Ladder(name, Scenario(tuple(requests), tuple(steps), options), parts)
