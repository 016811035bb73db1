"""The learned layers: the reference's value is NumPy's in float64, and honest peers lie within its budget."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from oracle.approx import Approx, as_float64
from oracle.reference import apply_head, classifier, dense, pool, projector, without_special_tokens
from oracle.rows import Linear
from oracle.scenario import DENSE_AND_SPARSE, Head, Options, Request
from tests.peers.batches import DTYPES, Batch, drawn, request
from tests.peers.peer import fbgemm, flag_embedder, peer

Values = np.ndarray[Any, np.dtype[np.float64]]
Case = tuple[Batch, Request, torch.Tensor]


def cases(count: int = 1500) -> Iterator[Case]:
    """Requests of whole layers, each with rows of its own: ALL, CLS, LAST."""
    for batch in drawn(count):
        # Under verification, params may be such as no head can serve.
        if batch.options.level == "pooler" and batch.options.model is None:
            for one, rows in zip(batch.requests, batch.rows, strict=True):
                # BGE-M3's task has two heads, each of which is another task's.
                if one.task != DENSE_AND_SPARSE:
                    yield batch, one, rows if one.is_token_task else rows[-1]


def finite_cases() -> Iterator[Case]:
    """Those without planted nan or inf, which a matrix product may spread over a row as it likes."""
    yield from (case for case in cases() if case[2].isfinite().all())


def in_float64(rows: Values, one: Request, head: Head, seed: int) -> Values:
    """The learned layers as anybody would write them in NumPy."""
    if one.chunk_size is not None:
        rows = np.stack([rows[at : at + one.chunk_size].mean(0) for at in range(0, len(rows), one.chunk_size)])
    if one.task in ("embed", "token_embed"):
        if head.embedding_size is not None:
            rows = np.einsum("...i,oi->...o", rows, projector(head.embedding_size, seed).matrix(rows.shape[-1]))
        rows = rows[..., : one.dimensions]
        if one.use_activation is False:
            return rows
        norm = np.linalg.norm(rows, axis=-1, keepdims=True)
        unit: Values = np.divide(rows, norm, out=np.zeros_like(rows), where=norm != 0)
        return unit
    if head.dense and one.task == "classify":
        rows = np.tanh(np.einsum("...i,oi->...o", rows, dense(rows.shape[-1], seed).matrix(rows.shape[-1])))
    if head.num_labels is not None:
        rows = np.einsum("...i,oi->...o", rows, classifier(head.num_labels, seed).matrix(rows.shape[-1]))
    rows = (rows - (head.logit_mean or 0)) / (head.logit_sigma or 1)
    if one.use_activation is False:
        return rows
    match head.problem_type or head.activation_fn or "single_label_classification":
        case "regression" | "Identity":
            return rows
        case "Tanh":
            return np.tanh(rows)
        case "multi_label_classification" | "Sigmoid":
            return 1 / (1 + np.exp(-rows))
    if rows.shape[-1] == 1:
        return 1 / (1 + np.exp(-rows))
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    made: Values = powers / powers.sum(axis=-1, keepdims=True)
    return made


def test_the_value_is_numpys_in_float64() -> None:
    seen = set()
    for batch, one, rows in finite_cases():
        head, seed = batch.options.head, batch.options.seed
        made = apply_head(rows, one, head, seed)
        assert isinstance(made, Approx)
        right = in_float64(as_float64(rows), one, head, seed)
        assert made.value.shape == right.shape
        assert np.abs(made.value - right).max(initial=0) <= 1e-13 * max(1.0, np.abs(right).max(initial=0))
        seen.add((one.task, one.use_activation, head.num_labels == 1, one.dimensions is not None))
    assert len(seen) > 12


def test_a_mean_goes_through_a_head_like_any_row() -> None:
    for batch, one, rows in finite_cases():
        if one.is_token_task:
            continue
        many = torch.stack([rows, rows.flip(0), rows])
        made = apply_head(pool("MEAN", many, request(3)), one, batch.options.head, batch.options.seed)
        right = in_float64(as_float64(many).mean(0), one, batch.options.head, batch.options.seed)
        assert isinstance(made, Approx)
        assert np.abs(made.value - right).max() <= 1e-13 * max(1.0, np.abs(right).max())


def test_sentence_transformers_embeds_within_the_budget() -> None:
    normalize = peer("sentence_transformers.sentence_transformer.modules").Normalize
    compared = 0
    for batch, one, rows in finite_cases():
        head, seed = batch.options.head, batch.options.seed
        if one.task not in ("embed", "token_embed") or one.chunk_size is not None:
            continue
        made = {"sentence_embedding": _cast(rows, head)}
        if head.embedding_size is not None:
            made["sentence_embedding"] = _through(projector(head.embedding_size, seed), made["sentence_embedding"])
        # vLLM's order: cut, then normalise.
        made["sentence_embedding"] = made["sentence_embedding"][..., : one.dimensions]
        if one.use_activation is not False:
            if made["sentence_embedding"].dtype is torch.float16 and not made["sentence_embedding"].any(-1).all():
                continue
            made = normalize()(made)
        compared += _assert_within(made["sentence_embedding"], apply_head(rows, one, head, seed))
    assert compared > 500


@pytest.mark.parametrize("softmax", ["fbgemm", "scipy"])
def test_classifiers_lie_within_the_budget(softmax: str) -> None:
    soft = _fbgemm_softmax if softmax == "fbgemm" else _scipy_softmax
    compared = 0
    for batch, one, rows in finite_cases():
        head, seed = batch.options.head, batch.options.seed
        if one.task not in ("classify", "token_classify"):
            continue
        logits = _cast(rows, head)
        if head.dense and one.task == "classify":
            logits = _through(dense(logits.shape[-1], seed), logits, torch.nn.Tanh())
        if head.num_labels is not None:
            logits = _through(classifier(head.num_labels, seed), logits)
        logits = logits if head.logit_mean is None else logits - head.logit_mean
        logits = logits if head.logit_sigma is None else logits / head.logit_sigma
        if one.use_activation is not False:
            logits = _activated(logits, head, soft)
        compared += _assert_within(logits, apply_head(rows, one, head, seed))
    assert compared > 500


def test_fbgemms_jagged_product_lies_within_the_budget() -> None:
    jagged = fbgemm()
    for batch in drawn(600):
        if not batch.finite:
            continue
        layer = Linear(5, batch.options.seed)
        weight = layer.matrix(batch.packed.shape[-1]).T.to(batch.dtype)
        longest = int(batch.lengths.max())
        made, _ = jagged.jagged_dense_bmm(
            batch.packed, batch.offsets, weight.expand(len(batch.rows), *weight.shape).contiguous(), longest
        )
        assert not Approx.exact(batch.packed).linear(layer.matrix(batch.packed.shape[-1])).wrong(made).any()


def test_rows_of_special_tokens_are_left_out_as_numpy_deletes_them() -> None:
    for batch in drawn(1500):
        for one, rows in zip(batch.requests, batch.rows, strict=True):
            if not (batch.options.filters_special_tokens and one.is_token_task) or one.chunk_size is not None:
                continue
            last = one.prompt_len - 1
            special = {0: batch.options.bos_token_id, last: batch.options.eos_token_id}
            gone = [at for at, token in special.items() if one.prompt_token_ids[at] == token]
            if last == 0:
                gone = [0] * (one.prompt_token_ids[0] in (batch.options.bos_token_id, batch.options.eos_token_id))
            right = np.delete(as_float64(rows), gone, axis=0)
            made = without_special_tokens(Approx.exact(rows), one, batch.options).value
            assert np.array_equal(made, right.squeeze(-1) if right.shape[-1] == 1 else right, equal_nan=True)


# Where a peer differs on purpose.


def test_flag_embedding_drops_the_first_row_whatever_its_token_where_the_filter_asks_for_bos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedder = flag_embedder(monkeypatch)
    embedder = embedder.__new__(embedder)
    embedder.colbert_linear = lambda rows: rows
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    theirs = embedder._colbert_embedding(rows[None], torch.ones(1, 2, dtype=torch.int64))[0]
    for first, due in ((0, rows[1:]), (5, rows)):
        one = Request("a", "token_embed", (first, 9))
        ours = without_special_tokens(Approx.exact(rows), one, Options(bos_token_id=0, eos_token_id=2))
        assert ours.value.tolist() == due.tolist()
        assert (theirs.tolist() == ours.value.tolist()) == (first == 0)


def test_sentence_transformers_cuts_after_its_normalize_module_so_its_norms_are_below_one() -> None:
    normalize = peer("sentence_transformers.sentence_transformer.modules").Normalize()
    cut = peer("sentence_transformers.util").truncate_embeddings
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    theirs = cut(normalize({"sentence_embedding": rows})["sentence_embedding"], 4)
    ours = apply_head(rows, Request("a", "token_embed", (1,) * 5, dimensions=4), Head(), seed=0)
    assert isinstance(ours, Approx)
    assert (theirs.norm(dim=-1) < 0.9).all()
    assert np.allclose(np.linalg.norm(ours.value, axis=-1), 1)
    # The other way round, as `normalize_embeddings=True` has it, they agree.
    assert not ours.wrong(normalize({"sentence_embedding": cut(rows, 4)})["sentence_embedding"]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torchs_norm_has_a_floor_that_float16_rounds_to_zero(dtype: torch.dtype) -> None:
    # A row of zeros is due as zeros. In float16 the floor of 1e-12 is 0, so zeros come out as nan: 0 / 0.
    normalize = peer("sentence_transformers.sentence_transformer.modules").Normalize()
    theirs = normalize({"sentence_embedding": torch.zeros(1, 4, dtype=dtype)})["sentence_embedding"]
    ours = Approx.exact(torch.zeros(1, 4, dtype=dtype)).normalize()
    assert ours.value.tolist() == [[0] * 4]
    assert ours.wrong(theirs).all() == (dtype is torch.float16)
    assert theirs.isnan().all() == (dtype is torch.float16)


def test_torchs_norm_gives_up_where_squares_leave_the_range_of_float32() -> None:
    # No model's hidden states are this small or large, and no scenario's; the reference is right there too.
    normalize = peer("sentence_transformers.sentence_transformer.modules").Normalize()
    rows = torch.tensor([[3e-20, 4e-20], [3e30, 4e30]])
    theirs = normalize({"sentence_embedding": rows})["sentence_embedding"]
    ours = Approx.exact(rows).normalize()
    assert np.allclose(ours.value, [[0.6, 0.8]] * 2)
    assert ours.wrong(theirs).all()
    assert theirs[0].norm() < 1e-6
    assert theirs[1].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fbgemms_softmax_rounds_on_the_way_in_half_precision_which_the_budget_tells(dtype: torch.dtype) -> None:
    # The budget lets sums be taken in float32 alone, as torch and vLLM take them.
    logits = torch.randn(64, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    due = Approx.exact(logits).softmax()
    assert due.wrong(_jagged_softmax(logits)).any(axis=-1).mean() > 0.5
    assert not due.wrong(_fbgemm_softmax(logits)).any()
    assert not due.wrong(logits.softmax(-1)).any()


def test_a_cross_encoder_takes_the_sigmoid_of_each_label_where_vllm_takes_the_softmax() -> None:
    expit = peer("scipy.special").expit
    logits = torch.tensor([1.0, -2.0, 0.5])
    ours = apply_head(logits, request(1, "classify"), Head(), seed=0)
    assert isinstance(ours, Approx)
    assert ours.value.sum() == pytest.approx(1)
    assert ours.wrong(torch.from_numpy(expit(logits.numpy()))).all()


def _cast(rows: torch.Tensor, head: Head) -> torch.Tensor:
    return rows if head.head_dtype is None else rows.to(getattr(torch, head.head_dtype))


def _through(layer: Linear, rows: torch.Tensor, activation: Any = None) -> torch.Tensor:
    """The same layer as a module of sentence-transformers, in the dtype of the rows."""
    made = peer("sentence_transformers.sentence_transformer.modules").Dense(
        rows.shape[-1], layer.out_features, False, activation, init_weight=layer.matrix(rows.shape[-1]).to(rows.dtype)
    )
    result: torch.Tensor = made({"sentence_embedding": rows})["sentence_embedding"]
    return result


def _assert_within(actual: torch.Tensor, due: Any) -> int:
    assert isinstance(due, Approx)
    assert tuple(actual.shape) == due.shape
    assert actual.dtype is due.dtype
    assert not due.wrong(actual).any()
    return actual.numel()


def _fbgemm_softmax(logits: torch.Tensor) -> torch.Tensor:
    """In float32, rounded once."""
    return _jagged_softmax(logits.float()).to(logits.dtype)


def _jagged_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Each row of logits as one jagged row of one column."""
    width = logits.shape[-1]
    offsets = torch.arange(0, logits.numel() + 1, width)
    made: torch.Tensor = fbgemm().jagged_softmax(logits.reshape(-1, 1), offsets, width)[0]
    return made.view(logits.shape)


def _scipy_softmax(logits: torch.Tensor) -> torch.Tensor:
    """In float32, rounded once."""
    return torch.from_numpy(peer("scipy.special").softmax(logits.float().numpy(), axis=-1)).to(logits.dtype)


def _activated(logits: torch.Tensor, head: Head, soft: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """By the problem type as transformers has it, else by the module that a cross-encoder names."""
    match head.problem_type or head.activation_fn:
        case "regression" | "Identity":
            return logits
        case "multi_label_classification" | "Sigmoid":
            return _scipy_sigmoid(logits)
        case "Tanh":
            return torch.from_numpy(np.tanh(logits.float().numpy())).to(logits.dtype)
    return _scipy_sigmoid(logits) if logits.shape[-1] == 1 else soft(logits)


def _scipy_sigmoid(logits: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(peer("scipy.special").expit(logits.float().numpy())).to(logits.dtype)
