"""What pooling is, by hand-worked examples and by properties."""

import math
from typing import Any

import pytest
import torch

from oracle.approx import Approx
from oracle.reference import apply_head, classifier, dense, pool, projector, without_special_tokens
from oracle.scenario import Head, Options, PoolingType, Request

ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 12.0]])


def request(task: str = "token_embed", ids: tuple[int, ...] = (7, 9, 9), **fields: Any) -> Request:
    return Request("a", task, ids, **fields)  # type: ignore[arg-type]


def value(result: Any) -> list[Any]:
    values: list[Any] = result.value.tolist() if isinstance(result, Approx) else result.tolist()
    return values


@pytest.mark.parametrize(
    ("pooling_type", "fields", "expected"),
    [
        ("ALL", {}, [[1, 2], [3, 4], [5, 12]]),
        ("CLS", {}, [1, 2]),
        ("LAST", {}, [5, 12]),
        ("MEAN", {}, [3, 6]),
        ("STEP", {}, [[1, 2], [3, 4], [5, 12]]),
        ("STEP", {"step_tag_id": 9}, [[3, 4], [5, 12]]),
        ("STEP", {"step_tag_id": 8}, []),
        ("STEP", {"returned_token_ids": (1,)}, [[2], [4], [12]]),
        ("STEP", {"returned_token_ids": (1, 0), "step_tag_id": 7}, [[2, 1]]),
    ],
)
def test_pooling_by_hand(pooling_type: PoolingType, fields: dict[str, Any], expected: list[Any]) -> None:
    assert value(pool(pooling_type, ROWS, request(**fields))) == expected


def test_mean_is_float32_whatever_comes_in() -> None:
    mean = pool("MEAN", ROWS.to(torch.bfloat16), request())
    assert mean.dtype is torch.float32


@pytest.mark.parametrize(
    ("task", "fields", "head", "expected"),
    [
        ("embed", {"use_activation": False}, {}, [3.0, 4.0]),
        ("embed", {}, {}, [0.6, 0.8]),
        # Cut before the norm: one column left is 1, not 0.6.
        ("embed", {"dimensions": 1}, {}, [1.0]),
        ("embed", {"dimensions": 1, "use_activation": False}, {}, [3.0]),
        ("classify", {"use_activation": False}, {"logit_mean": 1.0, "logit_sigma": 2.0}, [1.0, 1.5]),
        # softmax((1, 1.5)): calibration comes first.
        ("classify", {}, {"logit_mean": 1.0, "logit_sigma": 2.0}, [1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-0.5))]),
    ],
)
def test_heads_by_hand(task: str, fields: dict[str, Any], head: dict[str, Any], expected: list[float]) -> None:
    result = apply_head(ROWS[1], request(task, **fields), Head(**head), seed=0)
    assert value(result) == pytest.approx(expected, abs=1e-15)


def test_one_logit_takes_the_sigmoid() -> None:
    result = apply_head(torch.tensor([2.0]), request("classify"), Head(), seed=0)
    assert value(result) == pytest.approx([1 / (1 + math.exp(-2))])


def test_head_dtype_is_the_dtype_of_the_result() -> None:
    rows = ROWS.to(torch.bfloat16)
    for task in ("token_embed", "token_classify"):
        head = Head(head_dtype="float32", embedding_size=3, num_labels=3)
        assert apply_head(rows, request(task), head, seed=0).dtype is torch.float32
        assert apply_head(rows, request(task), Head(), seed=0).dtype is torch.bfloat16


def test_projector_and_classifier_widths() -> None:
    head = Head(embedding_size=5, num_labels=3)
    assert apply_head(ROWS, request("token_embed"), head, seed=0).shape == (3, 5)
    assert apply_head(ROWS, request("token_classify"), head, seed=0).shape == (3, 3)


def test_the_layers_of_a_scenario_have_weights_of_their_own() -> None:
    layers = [(projector(4, seed), classifier(4, seed), dense(4, seed)) for seed in range(8)]
    assert [layer.seed for three in layers for layer in three] == [
        number for seed in range(8) for number in (2 * seed, 2 * seed + 1, 16 + seed)
    ]
    # And no more sets of weights than are worth keeping.
    assert [layer.seed for layer in (projector(4, 11), classifier(4, 11), dense(4, 11))] == [6, 7, 19]


def test_a_zero_row_is_normalised_to_zero() -> None:
    result = apply_head(torch.zeros(1, 4), request(), Head(), seed=0)
    assert isinstance(result, Approx)
    assert not result.wrong(torch.zeros(1, 4)).any()
    assert result.wrong(torch.full((1, 4), torch.nan)).all()


@pytest.mark.parametrize(
    ("ids", "bos", "eos", "expected"),
    [
        ((1, 7, 2), 1, 2, [[3, 4]]),
        ((1, 7, 2), 1, None, [[3, 4], [5, 12]]),
        ((7, 7, 2), 1, 2, [[1, 2], [3, 4]]),
        ((7, 1, 7), 1, 1, [[1, 2], [3, 4], [5, 12]]),
        ((1, 2), 1, 2, []),
        ((1,), 1, 1, []),
    ],
)
def test_special_tokens_go_at_the_ends_and_nowhere_else(
    ids: tuple[int, ...], bos: int, eos: int | None, expected: list[Any]
) -> None:
    rows = Approx.exact(ROWS[: len(ids)])
    left = without_special_tokens(rows, request(ids=ids), Options(bos_token_id=bos, eos_token_id=eos))
    assert value(left) == expected
    assert left.shape == (len(expected), 2)


def test_a_score_a_token_has_one_axis_whatever_is_left() -> None:
    for count in (3, 2, 1):
        scores = Approx.exact(ROWS[:count, :1])
        left = without_special_tokens(scores, request(ids=(1, 7, 7)[:count]), Options(bos_token_id=1))
        assert left.shape == (count - 1,)
