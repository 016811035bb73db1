"""How a violation is told: shapes, worst elements, and rows by their origin."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from oracle.approx import Approx, as_float64
from oracle.contracts.seen import Outcome
from oracle.reference import Expected
from oracle.rows import same_numbers


def requests_told(number: int) -> str:
    """A number of requests."""
    return f"{number} request{'' if number == 1 else 's'}"


def places_told(places: Mapping[str, int]) -> str:
    """How often at each place of the subject's code."""
    return ", ".join(f"{count} x {place}" for place, count in places.items())


def shape_of(value: Any) -> str:
    """The shape of a tensor; of anything else what it is."""
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"


def wrong_result(expected: Expected, actual: torch.Tensor, origin: Callable[[torch.Tensor], str]) -> str | None:
    """What is wrong with a result that has left its step, or None."""
    if tuple(actual.shape) != tuple(expected.shape):
        return f"got {shape_of(actual)}, but should get {shape_of(expected)}"
    if isinstance(expected, Approx):
        wrong = expected.wrong(actual)
        return f"got {worst_element(expected, actual, wrong)}" if wrong.any() else None
    return None if same_numbers(expected, actual) else wrong_row(origin, expected, actual)


def wrong_row(origin: Callable[[torch.Tensor], str], expected: torch.Tensor, actual: torch.Tensor) -> str:
    """The first row that differs, by the origin of both; there is one."""
    if expected.dim() == 1:
        return f"got {origin(actual)}, but should get {origin(expected)}"
    for place, (due, got) in enumerate(zip(expected, actual, strict=True)):
        if not same_numbers(due, got):
            return f"got in row {place} {origin(got)}, but should get {origin(due)}"
    raise AssertionError("no row differs")


def worst_element(expected: Approx, actual: torch.Tensor, wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """The element furthest outside its budget."""
    got = as_float64(actual)
    # Of two infinities, or of what is no number, the difference is none either: nothing is further off.
    with np.errstate(invalid="ignore"):
        excess = np.where(wrong, np.nan_to_num(np.abs(got - expected.value) - expected.error, nan=np.inf), -np.inf)
    place = tuple(int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
    return (
        f"{got[place]:.9g} at {list(place)}, but should get {expected.value[place]:.9g} "
        f"within {expected.error[place]:.2g} ({wrong.sum()} of {wrong.size} elements are off)"
    )


def origins_of_rows(outcome: Outcome, actual: torch.Tensor) -> str:
    """Where the rows of a result come from, if they are rows at all."""
    rows = actual if actual.dim() == 2 else actual[None]
    if (
        not rows.numel()
        or rows.dim() != 2
        or rows.shape[-1] != outcome.call.hidden_states.shape[-1]
        or rows.dtype != outcome.call.hidden_states.dtype
    ):
        return ""
    named = [outcome.origin(row) for row in rows[:8]]
    if not any(name.startswith(("request", "the step")) for name in named):
        return ""
    return f": its rows are {'; '.join(named)}{'; ...' if len(rows) > 8 else ''}"
