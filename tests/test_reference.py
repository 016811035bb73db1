"""What pooling is, by hand-worked examples and by properties."""

import math
from typing import Any

import pytest
import torch

from oracle.approx import Approx
from oracle.reference import apply_head, classifier, dense, pool, projector, serve, without_special_tokens
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


ONE_OF_TWO = [1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))]
EACH = [1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-5))]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, ONE_OF_TWO),
        ({"problem_type": "single_label_classification"}, ONE_OF_TWO),
        ({"problem_type": "multi_label_classification"}, EACH),
        ({"problem_type": "regression"}, [3.0, 5.0]),
        ({"activation_fn": "Identity"}, [3.0, 5.0]),
        ({"activation_fn": "Sigmoid"}, EACH),
        ({"activation_fn": "Softmax"}, ONE_OF_TWO),
        ({"activation_fn": "Tanh"}, [math.tanh(3), math.tanh(5)]),
        # The problem type is looked at first.
        ({"problem_type": "regression", "activation_fn": "Sigmoid"}, [3.0, 5.0]),
        ({"problem_type": "single_label_classification", "activation_fn": "Identity"}, ONE_OF_TWO),
    ],
)
@pytest.mark.parametrize("task", ["classify", "token_classify"])
def test_the_model_says_which_activation_its_logits_take(
    task: str, head: dict[str, Any], expected: list[float]
) -> None:
    logits = torch.tensor([3.0, 5.0])
    assert value(apply_head(logits, request(task), Head(**head), seed=0)) == pytest.approx(expected)
    assert value(apply_head(logits, request(task, use_activation=False), Head(**head), seed=0)) == [3.0, 5.0]


@pytest.mark.parametrize("head", [{"problem_type": "single_label_classification"}, {"activation_fn": "Softmax"}])
def test_one_logit_takes_the_sigmoid_where_several_take_the_softmax(head: dict[str, Any]) -> None:
    result = apply_head(torch.tensor([2.0]), request("classify"), Head(**head), seed=0)
    assert value(result) == pytest.approx([1 / (1 + math.exp(-2))])


@pytest.mark.parametrize(
    ("chunk_size", "expected"),
    [(1, [[1, 2], [3, 4], [5, 12]]), (2, [[2, 3], [5, 12]]), (3, [[3, 6]]), (9, [[3, 6]])],
)
def test_late_chunking_averages_before_the_head(chunk_size: int, expected: list[Any]) -> None:
    plain = request(chunk_size=chunk_size, use_activation=False)
    assert value(apply_head(ROWS, plain, Head(), seed=0)) == expected
    unit = apply_head(ROWS, request(chunk_size=chunk_size), Head(), seed=0)
    assert [sum(x * x for x in row) for row in value(unit)] == pytest.approx([1] * len(expected))


@pytest.mark.parametrize(("head_dtype", "due"), [(None, "bfloat16"), ("float32", "float32"), ("float16", "float16")])
def test_chunks_have_the_dtype_of_the_head_or_else_of_the_tokens(head_dtype: Any, due: str) -> None:
    rows = ROWS.to(torch.bfloat16)
    assert apply_head(rows, request(chunk_size=2), Head(head_dtype=head_dtype), seed=0).dtype is getattr(torch, due)


def test_chunks_are_no_special_tokens() -> None:
    options = Options(level="pooler", bos_token_id=7, eos_token_id=9)
    assert serve(ROWS, request(chunk_size=2), options).shape == (2, 2)
    assert serve(ROWS, request(), options).shape == (1, 2)


@pytest.mark.parametrize(("bos", "scores"), [(None, [1, 2, 3, 4, 5, 12]), (7, [3, 4, 5, 12])])
def test_dense_and_sparse_is_a_vector_with_the_tokens_scores_behind_it(bos: int | None, scores: list[float]) -> None:
    options = Options(level="pooler", enable_chunked_prefill=False, bos_token_id=bos)
    plain = request("embed&token_classify", use_activation=False)
    assert value(serve(ROWS, plain, options)) == [5, 12, *scores]


def test_dense_and_sparse_has_the_dtype_that_holds_both() -> None:
    options = Options(level="pooler", enable_chunked_prefill=False, seq_pooling_type="MEAN")
    result = serve(ROWS.to(torch.bfloat16), request("embed&token_classify"), options)
    assert result.dtype is torch.float32


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
