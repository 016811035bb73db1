"""Where rows are only moved, the reference and every peer agree to the last number: nan, inf and all."""

from typing import Any, Literal

import numpy as np
import pytest
import torch

from oracle.rows import bits
from tests.peers.batches import Batch, assert_same, batches, drawn
from tests.peers.peer import fbgemm, flag_embedder, peer

Side = Literal["left", "right"]
SIDES = pytest.mark.parametrize("side", ["left", "right"])
PAD = float("nan")


def cut(rows: torch.Tensor, offsets: Any) -> list[torch.Tensor]:
    """Rows (all, h) into one piece a request."""
    return list(rows.tensor_split(offsets[1:-1].to(torch.int64)))


def as_bits(rows: torch.Tensor) -> Any:
    """For NumPy, which has no bfloat16 and needs none to move rows."""
    return bits(rows).numpy()


def tagged(batch: Batch) -> list[torch.Tensor]:
    """By request, which of its tokens STEP pooling keeps."""
    return [
        torch.tensor([request.step_tag_id in (None, token) for token in request.prompt_token_ids])
        for request in batch.requests
    ]


def returned(batch: Batch, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """The columns that STEP pooling hands out, by NumPy's `take`."""
    return [
        own
        if request.returned_token_ids is None
        else torch.from_numpy(np.take(as_bits(own), request.returned_token_ids, axis=1)).view(own.dtype)
        for own, request in zip(rows, batch.requests, strict=True)
    ]


@SIDES
def test_all_is_what_transformers_unpads(side: Side) -> None:
    unpad = peer("transformers.modeling_flash_attention_utils")._unpad_input
    for batch in batches():
        rows, _, offsets, longest, _ = unpad(*batch.padded(side, PAD))
        assert longest == max(len(own) for own in batch.rows)
        assert_same(cut(rows, offsets), batch.due("ALL"))


@SIDES
def test_all_survives_transformers_padding_and_unpadding(side: Side) -> None:
    flash = peer("transformers.modeling_flash_attention_utils")
    for batch in drawn():
        _, mask = batch.padded(side)
        places = mask.flatten().nonzero().flatten()
        padded = flash._pad_input(batch.packed, places, *mask.shape)
        assert_same([padded], [batch.padded(side)[0]])
        assert_same(cut(flash._unpad_input(padded, mask)[0], batch.offsets), batch.due("ALL"))


def test_all_is_what_fbgemm_makes_jagged() -> None:
    jagged = fbgemm()
    for batch in batches():
        padded = jagged.jagged_to_padded_dense(batch.packed, [batch.offsets], [int(batch.lengths.max())], PAD)
        rows, _ = jagged.dense_to_jagged(padded, [batch.offsets], len(batch.packed))
        assert_same(cut(rows, batch.offsets), batch.due("ALL"))


def test_all_is_what_a_jagged_nested_tensor_unbinds() -> None:
    for batch in batches():
        nested = torch.nested.nested_tensor_from_jagged(batch.packed, batch.offsets)
        assert_same(nested.unbind(), batch.due("ALL"))


def test_step_is_what_numpy_compresses() -> None:
    for batch in drawn(600, "STEP"):
        kept = [
            torch.from_numpy(np.compress(mask.numpy(), as_bits(rows), axis=0)).view(rows.dtype)
            for rows, mask in zip(batch.rows, tagged(batch), strict=True)
        ]
        assert_same(returned(batch, kept), batch.due("STEP"))


@SIDES
def test_step_is_what_transformers_unpads_under_a_mask_of_the_tags(side: Side) -> None:
    unpad = peer("transformers.modeling_flash_attention_utils")._unpad_input
    for batch in drawn(600, "STEP"):
        rows, _ = batch.padded(side, PAD)
        mask = torch.nn.utils.rnn.pad_sequence(tagged(batch), batch_first=True, padding_side=side)
        kept, _, offsets, *_ = unpad(rows, mask)
        assert_same(returned(batch, cut(kept, offsets)), batch.due("STEP"))


def test_step_is_what_fbgemm_selects() -> None:
    jagged = fbgemm()
    for batch in drawn(600, "STEP"):
        every = torch.arange(len(batch.packed))
        places, counts = jagged.masked_select_jagged_1d(every, batch.lengths, torch.cat(tagged(batch)))
        kept = list(batch.packed[places].split_with_sizes(counts.tolist()))
        assert_same(returned(batch, kept), batch.due("STEP"))


@SIDES
@pytest.mark.parametrize(("mode", "pooling_type"), [("cls", "CLS"), ("lasttoken", "LAST")])
def test_cls_and_last_are_those_of_sentence_transformers(mode: str, pooling_type: Any, side: Side) -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    for batch in batches():
        rows, mask = batch.padded(side)
        made = pooling(rows.shape[-1], mode)({"token_embeddings": rows, "attention_mask": mask})
        assert_same(made["sentence_embedding"], batch.due(pooling_type))


@pytest.mark.parametrize(("mode", "pooling_type"), [("cls", "CLS"), ("lasttoken", "LAST")])
def test_cls_and_last_are_those_of_flattened_sentence_transformers(mode: str, pooling_type: Any) -> None:
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    for batch in batches():
        made = pooling(batch.packed.shape[-1], mode)(
            {"token_embeddings": batch.packed[None], "cu_seq_lens_q": batch.offsets}
        )
        assert_same(made["sentence_embedding"], batch.due(pooling_type))


@pytest.mark.parametrize(
    ("method", "pooling_type", "side"),
    [("cls", "CLS", "right"), ("last_token", "LAST", "right"), ("last_token", "LAST", "left")],
)
def test_cls_and_last_are_those_of_flag_embedding(
    method: str, pooling_type: Any, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = flag_embedder(monkeypatch)
    embedder = embedder.__new__(embedder)
    embedder.sentence_pooling_method = method
    for batch in batches():
        assert_same(embedder._dense_embedding(*batch.padded(side, PAD)), batch.due(pooling_type))


def test_cls_and_last_are_the_ends_that_numpy_takes() -> None:
    for batch in batches():
        packed, offsets = as_bits(batch.packed), batch.offsets.numpy()
        for pooling_type, places in (("CLS", offsets[:-1]), ("LAST", offsets[1:] - 1)):
            taken = torch.from_numpy(np.take(packed, places, axis=0)).view(batch.dtype)
            assert_same(taken, batch.due(pooling_type))  # type: ignore[arg-type]


# Where a peer differs on purpose.


def test_flag_embedding_takes_the_first_column_for_cls_so_left_padding_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedder = flag_embedder(monkeypatch)
    embedder = embedder.__new__(embedder)
    embedder.sentence_pooling_method = "cls"
    rows, mask = Batch((), [torch.ones(1, 2), torch.ones(3, 2)]).padded("left", PAD)
    assert embedder._dense_embedding(rows, mask).isnan().any(dim=1).tolist() == [True, False]


def test_sentence_transformers_loses_the_last_token_of_a_request_that_is_all_prompt() -> None:
    # Padded, what is left after the prompt is nothing, so the row is zero; flattened, the prompt's last row comes out.
    pooling = peer("sentence_transformers.sentence_transformer.modules").Pooling
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    last = pooling(2, "lasttoken", include_prompt=False)
    padded = {"token_embeddings": rows[None], "attention_mask": torch.ones(1, 2, dtype=torch.int64)}
    flattened = {"token_embeddings": rows[None], "cu_seq_lens_q": torch.tensor([0, 2])}
    assert last({**padded, "prompt_length": 2})["sentence_embedding"].tolist() == [[0, 0]]
    assert last({**flattened, "prompt_length": 2})["sentence_embedding"].tolist() == [[3, 4]]
