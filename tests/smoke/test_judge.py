"""What judges the whole engine sees a wrong vector and a lost row; this needs no vLLM."""

import numpy as np
import pytest

from tests.smoke.tiny import BUDGET, Rows, wrong

DUE: list[Rows] = [np.full((3, 4), 0.5), np.full(4, -0.5)]


def test_what_is_right_within_the_budget_passes() -> None:
    assert wrong(DUE, [DUE[0] + BUDGET / 2, DUE[1]]) == []


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ([DUE[0][:2], DUE[1]], "prompt 0 got a result of shape (2, 4), but should get (3, 4)"),
        ([DUE[0], DUE[1] + 2 * BUDGET], "prompt 1 is off by 3.1e-05, but may be by 1.5e-05"),
        ([DUE[0] * np.nan, DUE[1]], "prompt 0 is off by nan, but may be by 1.5e-05"),
        (DUE[:1], "1 results for 2 prompts"),
    ],
)
def test_what_is_wrong_is_told(got: list[Rows], told: str) -> None:
    assert wrong(DUE, got) == [told]
