"""Whose result is wrong, in which rows, and where these rows come from: facts, for others to put into words."""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import numpy as np
import torch

from oracle.approx import Approx
from oracle.contracts import Outcome
from oracle.rows import STALE, Universe, same_bits

MAX_WRONG_ROWS: Final = 32
"""Wrong rows told one by one; a long prompt may have thousands."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a row comes from."""

    kind: Literal["token", "padding", "overwritten", "computed", "unknown"]
    request: str = ""
    position: int = 0
    """Which of the request's prompt tokens, for kind `token`."""

    def __str__(self) -> str:
        if self.kind == "token":
            return f"request {self.request}, token {self.position}"
        return {
            "padding": "padding",
            "overwritten": "the step's buffer after it was overwritten",
            "computed": "what its own rows come to",
            "unknown": "a row that is no request's",
        }[self.kind]


class WrongRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A row of a result that is not what is due; None where there should be no row, or is none."""

    row: int
    due: Origin | None = None
    got: Origin | None = None


class Blame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request whose result is wrong, and the first of its wrong rows."""

    request: str
    num_due: int
    num_got: int
    num_wrong: int
    wrong: tuple[WrongRow, ...]


def blame(outcome: Outcome, universe: Universe) -> Blame | None:
    """The first request of the outcome whose result is a tensor with wrong rows, if there is one."""
    if len(outcome.results) != len(outcome.call.names):
        return None
    for name, expected, actual in outcome.pairs():
        if isinstance(actual, torch.Tensor) and 1 <= actual.dim() <= 2 and len(expected.shape) == actual.dim():
            wrong = list(_wrong_rows(name, expected, actual, universe))
            if wrong:
                num_due, num_got = (shape[0] if len(shape) == 2 else 1 for shape in (expected.shape, actual.shape))
                return Blame(name, num_due, num_got, len(wrong), tuple(wrong[:MAX_WRONG_ROWS]))
    return None


def _wrong_rows(name: str, expected: Any, actual: torch.Tensor, universe: Universe) -> Iterator[WrongRow]:
    got = actual if actual.dim() == 2 else actual[None]
    if isinstance(expected, Approx):
        if expected.shape != tuple(actual.shape):
            return
        wrong = expected.wrong(actual)
        for row in np.flatnonzero((wrong if actual.dim() == 2 else wrong[None]).any(axis=1)).tolist():
            origin = _origin(got[row], name, universe)
            # Arithmetic makes nan of many things besides padding.
            yield WrongRow(row, Origin("computed"), Origin("unknown") if origin.kind == "padding" else origin)
        return
    due = expected if expected.dim() == 2 else expected[None]
    if got.dtype != due.dtype:
        return
    for row in range(max(len(due), len(got))):
        if row >= len(got):
            yield WrongRow(row, due=_origin(due[row], name, universe))
        elif row >= len(due):
            yield WrongRow(row, got=_origin(got[row], name, universe))
        elif got.shape[1] != due.shape[1] or not same_bits(due[row], got[row]):
            yield WrongRow(row, _origin(due[row], name, universe), _origin(got[row], name, universe))


def _origin(row: torch.Tensor, own: str, universe: Universe) -> Origin:
    """Whose row this is; of several that look alike the request's own."""
    found = universe.sources(row)
    if found:
        request, position = next((place for place in found if place[0] == own), found[0])
        return Origin("token", request, position)
    if bool((row == STALE).all()):
        return Origin("overwritten")
    return Origin("padding" if bool(row.isnan().all()) else "unknown")
