"""Rows say where they come from, and are exact in every dtype."""

import numpy as np
import pytest
import torch

from oracle.rows import STALE, Linear, Universe, bits, exact_rows, same_numbers, weight
from oracle.scenario import Options, Request, Scenario

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def universe(lengths: list[int], **options: object) -> Universe:
    requests = tuple(Request(chr(97 + place), "token_embed", (1,) * length) for place, length in enumerate(lengths))
    return Universe(Scenario(requests, (), Options(**options)), torch.device("cpu"))  # type: ignore[arg-type]


def test_content_is_exact_in_every_dtype_and_away_from_the_stale_value() -> None:
    values = exact_rows(np.zeros(600, dtype=np.int64), np.arange(600), 16, seed=3)
    for dtype in DTYPES:
        assert torch.equal(torch.from_numpy(values).to(dtype).double(), torch.from_numpy(values).double())
    assert np.abs(values).max() <= 125 < STALE


@pytest.mark.parametrize("hidden_size", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1, 77])
def test_rows_of_a_small_scenario_all_differ(hidden_size: int, seed: int) -> None:
    rows = universe([6, 6, 6, 6], hidden_size=hidden_size, seed=seed).rows
    distinct = len(torch.unique(rows, dim=0))
    # One column has 251 values for 24 rows: neighbours differ, a few distant rows may meet.
    assert distinct == 24 if hidden_size > 1 else distinct >= 20


def test_rows_of_a_long_scenario_all_differ() -> None:
    rows = universe([3000, 500, 1], hidden_size=4).rows
    assert len(torch.unique(rows, dim=0)) == 3501


def test_a_request_keeps_its_rows_whoever_else_is_there() -> None:
    alone, together = universe([3]), universe([3, 5])
    assert torch.equal(alone.of("a", 0, 3), together.of("a", 0, 3))


@pytest.mark.parametrize("content", ["exact", "float"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_is_named_by_request_and_token(content: str, dtype: str) -> None:
    there = universe([3, 5], content=content, dtype=dtype)
    assert there.origin(there.of("b", 4, 1)[0]) == "request b, token 4"
    assert there.origin(torch.full((4,), STALE)) == "the step's buffer after it was overwritten"
    assert there.origin(torch.full((4,), torch.nan, dtype=there.dtype)) == "padding"
    assert there.origin(torch.full((4,), 7.5, dtype=there.dtype)) == "no request's row [7.5, 7.5, 7.5, 7.5]"


def test_bits_tell_zero_from_minus_zero_and_nan_from_nothing() -> None:
    nan, zero = torch.tensor([torch.nan]), torch.tensor([0.0])
    assert same_numbers(nan, nan.clone())
    assert not same_numbers(nan, zero)
    assert torch.equal(bits(zero), torch.zeros(1, dtype=torch.int32))
    assert not torch.equal(bits(zero), bits(-zero))


def test_a_nan_is_a_nan_whatever_its_payload() -> None:
    nan = torch.tensor([0x7FC0, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
    assert not torch.equal(bits(nan[:1]), bits(nan[1:]))
    assert same_numbers(nan[:1], nan[1:])


def test_a_row_of_nan_is_named_whatever_its_payload() -> None:
    # torch.gather changes it, in bfloat16 on a CPU.
    there = universe([3], dtype="bfloat16")
    there.rows[1] = torch.nan
    row = there.of("a", 1, 1)[0]
    other = torch.full_like(bits(row), -1).view(torch.bfloat16)
    assert there.origin(other) == there.origin(row) == "request a, token 1"


def test_weights_are_exact_and_depend_on_the_seed() -> None:
    matrix = weight(33, 5, 1)
    assert torch.equal(matrix.to(torch.float16).float(), matrix)
    assert (matrix != 0).sum(dim=1).max() == 3
    assert not torch.equal(matrix, weight(33, 5, 2))


def test_a_layer_mixes_no_rows_even_where_one_is_infinite() -> None:
    rows = torch.ones(129, 33, dtype=torch.bfloat16)
    rows[64] = torch.inf
    out = Linear(7, 0)(rows)
    assert out[:64].isfinite().all()
    assert out[65:].isfinite().all()
