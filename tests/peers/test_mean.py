"""MEAN: the reference's value is the exact one, and every honest peer lies within its budget."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch

from oracle.approx import Approx
from oracle.reference import pool
from tests.peers.batches import Batch, batches, extremes
from tests.peers.peer import fbgemm, flag_embedder, peer

Side = Literal["left", "right"]
SIDES = pytest.mark.parametrize("side", ["left", "right"])


def due(batch: Batch) -> list[Approx]:
    """The reference's mean of each request."""
    made = [pool("MEAN", rows, request) for rows, request in zip(batch.rows, batch.requests, strict=True)]
    assert all(isinstance(mean, Approx) for mean in made)
    return made  # type: ignore[return-value]


def assert_within(actual: Sequence[torch.Tensor] | torch.Tensor, expected: Sequence[Approx]) -> None:
    """Every element lies within the reference's budget."""
    assert len(actual) == len(expected)
    for got, right in zip(actual, expected, strict=True):
        assert tuple(got.shape) == right.shape
        assert got.dtype is right.dtype
        assert not right.wrong(got).any()


def spreads_out(rows: torch.Tensor) -> bool:
    """Whether the sum of these rows is finite in float32, which nobody can do without."""
    return bool(rows.double().abs().nan_to_num(posinf=0).sum(0).max() < torch.finfo(torch.float32).max)


def some() -> Iterator[Batch]:
    """Batches whose sums float32 can hold."""
    yield from (batch for batch in batches() if all(spreads_out(rows) for rows in batch.rows))


def test_the_value_is_that_of_exact_fractions() -> None:
    for batch in batches(200):
        for rows, mean in zip(batch.rows, due(batch), strict=True):
            if len(rows) > 600 or not rows.isfinite().all():
                continue
            for column, got in zip(rows.double().T.tolist(), mean.value.tolist(), strict=True):
                exact = sum(map(Fraction, column)) / len(column)
                assert abs(Fraction(got) - exact) <= 2.0**-50 * sum(map(abs, column)) / len(column)


def test_the_value_is_that_of_a_correctly_rounded_sum() -> None:
    for batch in extremes():
        for rows, mean in zip(batch.rows, due(batch), strict=True):
            exact = [math.fsum(column) / len(rows) for column in rows.double().T.tolist()]
            size = rows.double().abs().mean(0).numpy()
            assert (np.abs(mean.value - exact) <= 2.0**-50 * size).all()


def test_numpys_reduceat_in_float64_lies_within() -> None:
    for batch in some():
        sums = np.add.reduceat(batch.packed.double().numpy(), batch.offsets[:-1].numpy(), axis=0)
        assert_within(torch.from_numpy(sums / batch.lengths[:, None].numpy()).float(), due(batch))


@SIDES
def test_sentence_transformers_lies_within_where_it_stays_in_float32(side: Side) -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    for batch in some():
        rows, mask = batch.padded(side)
        made = pooling(rows.shape[-1], "mean")({"token_embeddings": rows.float(), "attention_mask": mask})
        assert_within(made["sentence_embedding"], due(batch))


def test_flattened_sentence_transformers_lies_within_where_it_stays_in_float32() -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    for batch in some():
        rows = {"token_embeddings": batch.packed.float()[None], "cu_seq_lens_q": batch.offsets}
        assert_within(pooling(batch.packed.shape[-1], "mean")(rows)["sentence_embedding"], due(batch))


@SIDES
def test_flag_embedding_lies_within(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = flag_embedder(monkeypatch)
    embedder = embedder.__new__(embedder)
    embedder.sentence_pooling_method = "mean"
    for batch in some():
        assert_within(embedder._dense_embedding(*batch.padded(side)), due(batch))


def test_fbgemms_segment_sums_lie_within_in_float32() -> None:
    jagged = fbgemm()
    for batch in some():
        assert_within(_segment_sums(jagged, batch.packed.float(), batch.offsets) / batch.lengths[:, None], due(batch))


def test_fbgemms_padded_sums_lie_within_in_float32() -> None:
    jagged = fbgemm()
    for batch in some():
        longest = int(batch.lengths.max())
        padded = jagged.jagged_to_padded_dense(batch.packed.float(), [batch.offsets], [longest], 0.0)
        assert_within(padded.sum(1) / batch.lengths[:, None], due(batch))


# Where a peer differs on purpose.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sentence_transformers_hands_out_the_models_dtype_where_vllm_hands_out_float32(dtype: torch.dtype) -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    outside = 0
    for batch in some():
        if batch.dtype is not dtype:
            continue
        rows, mask = batch.padded()
        made = pooling(rows.shape[-1], "mean")({"token_embeddings": rows, "attention_mask": mask})["sentence_embedding"]
        # As a rounded float32 mean it is right; as a float32 mean it is not.
        assert_within(made, [mean.to(dtype) for mean in due(batch)])
        outside += sum(bool(mean.wrong(got.float()).any()) for mean, got in zip(due(batch), made, strict=True))
    assert outside > 50


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fbgemm_sums_in_the_models_dtype_which_the_budget_tells(dtype: torch.dtype) -> None:
    rows = (torch.randn(4096, 8, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)
    offsets = torch.tensor([0, len(rows)])
    (mean,) = due(Batch([next(extremes()).requests[0]], [rows]))
    assert mean.wrong(_segment_sums(fbgemm(), rows, offsets)[0].float() / len(rows)).all()
    assert not mean.wrong(_segment_sums(fbgemm(), rows.float(), offsets)[0] / len(rows)).any()


def test_peers_that_multiply_by_the_mask_let_padding_of_nan_through(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = flag_embedder(monkeypatch)
    embedder = embedder.__new__(embedder)
    embedder.sentence_pooling_method = "mean"
    rows, mask = Batch((), [torch.ones(1, 2), torch.ones(3, 2)]).padded(fill=torch.nan)
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling(2, "mean")
    theirs = pooling({"token_embeddings": rows, "attention_mask": mask})["sentence_embedding"]
    for made in (theirs, embedder._dense_embedding(rows, mask)):
        assert made.isnan().any(dim=1).tolist() == [True, False]


def test_sentence_transformers_may_leave_the_prompt_out_which_pooling_methods_know_nothing_of() -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling(1, "mean", include_prompt=False)
    rows = {"token_embeddings": torch.tensor([[[1.0], [2.0], [6.0]]]), "cu_seq_lens_q": torch.tensor([0, 3])}
    assert pooling({**rows, "prompt_length": 1})["sentence_embedding"].tolist() == [[4]]
    assert due(Batch([next(extremes()).requests[0]], [rows["token_embeddings"][0]]))[0].value.tolist() == [3]


def _segment_sums(jagged: object, packed: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Sums (n, h) by `segment_sum_csr`, which takes plain numbers: column after column."""
    width, count = packed.shape[1], len(offsets) - 1
    starts = (torch.arange(width)[:, None] * len(packed) + offsets[:-1]).flatten()
    ends = torch.tensor([width * len(packed)])
    sums: torch.Tensor = jagged.segment_sum_csr(1, torch.cat([starts, ends]), packed.T.flatten())  # type: ignore[attr-defined]
    return sums.view(width, count).T
