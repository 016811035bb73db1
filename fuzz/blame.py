"""Whose result is wrong, in which rows, and where these rows come from: facts, for others to put into words."""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import torch

from oracle.approx import Approx
from oracle.contracts import Outcome
from oracle.reference import Expected
from oracle.rows import STALE, Universe, same_numbers

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
    found = (blamed(name, expected, actual, universe) for name, expected, actual in outcome.pairs())
    return next((one for one in found if one is not None), None)


def blamed(name: str, expected: Expected, actual: Any, universe: Universe) -> Blame | None:
    """What is wrong with the rows of one request's result, if it is a tensor and should be."""
    if not isinstance(actual, torch.Tensor) or not 1 <= actual.dim() <= 2 or len(expected.shape) != actual.dim():
        return None
    wrong = list(_wrong_rows(name, expected, actual, universe))
    if not wrong:
        return None
    num_due, num_got = (shape[0] if len(shape) == 2 else 1 for shape in (expected.shape, actual.shape))
    return Blame(name, num_due, num_got, len(wrong), tuple(wrong[:MAX_WRONG_ROWS]))


def _wrong_rows(name: str, expected: Expected, actual: torch.Tensor, universe: Universe) -> Iterator[WrongRow]:
    if actual.dtype != expected.dtype or actual.device != universe.rows.device:
        return
    got = actual if actual.dim() == 2 else actual[None]
    num_due, width = expected.shape if len(expected.shape) == 2 else (1, *expected.shape)
    both = min(num_due, len(got))
    is_wrong = [True] * both if got.shape[1] != width else _differ(expected, got, both)
    for row in range(max(num_due, len(got))):
        if row >= both or is_wrong[row]:
            yield WrongRow(
                row,
                _due(expected, row, name, universe) if row < num_due else None,
                _got(expected, got[row], name, universe) if row < len(got) else None,
            )


def _differ(expected: Expected, got: torch.Tensor, count: int) -> list[bool]:
    """For each of the first rows whether it is not what is due; none without a column is."""
    if not got.shape[1]:
        return [False] * count
    if isinstance(expected, Approx):
        value, error = (part.reshape(-1, got.shape[1])[:count] for part in (expected.value, expected.error))
        return [bool(row.any()) for row in Approx(value, error, expected.dtype).wrong(got[:count])]
    due = expected.reshape(-1, got.shape[1])
    return [not same_numbers(due[row], got[row]) for row in range(count)]


def _due(expected: Expected, row: int, name: str, universe: Universe) -> Origin:
    if isinstance(expected, Approx):
        return Origin("computed")
    return _origin(expected[row] if expected.dim() == 2 else expected, name, universe)


def _got(expected: Expected, row: torch.Tensor, name: str, universe: Universe) -> Origin:
    origin = _origin(row, name, universe)
    # Arithmetic makes nan of many things besides padding.
    return Origin("unknown") if origin.kind == "padding" and isinstance(expected, Approx) else origin


def _origin(row: torch.Tensor, own: str, universe: Universe) -> Origin:
    """Whose row this is; of several that look alike the request's own."""
    found = universe.sources(row)
    if found:
        request, position = next((place for place in found if place[0] == own), found[0])
        return Origin("token", request, position)
    if bool((row == STALE).all()):
        return Origin("overwritten")
    return Origin("padding" if bool(row.isnan().all()) else "unknown")
