"""Error budgets: honest arithmetic in any dtype fits, a lost token or a wrong divisor does not."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import normalize

from oracle.approx import Approx
from oracle.rows import Linear

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Operation = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Approx], Approx]]

OPERATIONS: dict[str, Operation] = {
    "linear": (Linear(5, 1), lambda x: x.linear(Linear(5, 1).matrix(x.shape[-1]))),
    "minus": (lambda x: x - 0.3, lambda x: x.minus(0.3)),
    "over": (lambda x: x / 0.7, lambda x: x.over(0.7)),
    "normalize": (lambda x: normalize(x, dim=-1), Approx.normalize),
    "softmax": (lambda x: x.softmax(-1), Approx.softmax),
    "sigmoid": (torch.sigmoid, Approx.sigmoid),
    "to half": (lambda x: x.to(torch.bfloat16), lambda x: x.to(torch.bfloat16)),
    "to single": (lambda x: x.float(), lambda x: x.to(torch.float32)),
}


def random_rows(seed: int, length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(length, width, generator=generator) * 3 + 1).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("second", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
def test_torchs_own_arithmetic_fits_the_budget(first: str, second: str, dtype: torch.dtype) -> None:
    for seed in range(5):
        rows = random_rows(seed, 17, 9, dtype)
        actual, due = rows, Approx.exact(rows)
        for name in (first, second):
            operate, expect = OPERATIONS[name]
            actual, due = operate(actual), expect(due)
        assert actual.dtype is due.dtype
        assert not due.wrong(actual).any()


@pytest.mark.parametrize("length", [1, 7, 128, 512, 4096, 60_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mean_fits_and_its_usual_mistakes_do_not(length: int, dtype: torch.dtype) -> None:
    # A sequential float32 sum may honestly lose a token's worth beyond some 1,000 tokens, so long prompts
    # are judged on integers, whose sums are exact.
    rows = random_rows(length, length, 16, dtype)
    rows = rows.round().clamp(-125, 125) if length > 512 else rows
    due = Approx.exact(rows).mean()
    assert not due.wrong(rows.mean(0, dtype=torch.float32)).any()
    assert not due.wrong(rows.float().sum(0) * (1 / torch.tensor(float(length)))).any()
    assert due.wrong(rows.float().sum(0) / (length + 1)).any()
    if length > 1:
        assert due.wrong(rows[:-1].mean(0, dtype=torch.float32)).any()
    if length >= 128 and dtype is torch.bfloat16:
        assert due.wrong(rows.mean(0).float()).any(), "a result rounded to bfloat16 passes for float32"


def test_integers_leave_no_room_for_accumulation_error() -> None:
    rows = torch.arange(-40.0, 61.0)[:, None].repeat(1, 3)
    due = Approx.exact(rows).mean()
    assert float(due.error.max()) < 3e-6
    assert not due.wrong(rows.mean(0)).any()
    assert due.wrong(rows.mean(0) * (1 + 1e-6)).all()


def test_nonfinite_values_must_be_where_they_are_due() -> None:
    due = Approx.exact(torch.tensor([1.0, torch.nan, torch.inf]))
    assert not due.wrong(torch.tensor([1.0, torch.nan, torch.inf])).any()
    assert due.wrong(torch.tensor([torch.nan, 1.0, -torch.inf])).all()


def test_a_widening_cast_is_free_and_a_narrowing_one_is_not() -> None:
    rows = torch.tensor([[1.0, 257.0]])
    assert Approx.exact(rows.half()).to(torch.float32).error.max() == 0
    assert Approx.exact(rows).to(torch.bfloat16).error.max() > 0


def test_budgets_are_the_derived_ones_by_hand() -> None:
    # In roundings of float32: what each operation may lose, and no more.
    unit = torch.finfo(torch.float32).eps / 2
    # Four equal logits: four and the row's width for the sum and the division, then two of the result, 1/4 each.
    assert Approx.exact(torch.zeros(1, 4)).softmax().error / unit == pytest.approx((4 + 4) / 4 + 2 / 4, rel=1e-5)
    # Five products of width two, each 2, two roundings each; five more of the sum, which is 10; one of the result.
    score = Approx.exact(torch.ones(5, 2)).maxsim(Approx.exact(torch.ones(1, 2)))
    assert score.error / unit == pytest.approx(5 * 2 * 2 + 5 * 10 + 10, rel=1e-5)
