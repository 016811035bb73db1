"""Late interaction: the reference's score is the exact one, and each peer lies within its budget."""

from collections.abc import Iterator

import numpy as np
import torch

from oracle.approx import Approx
from oracle.reference import maxsim
from tests.peers.batches import drawn
from tests.peers.peer import peer

Pair = tuple[torch.Tensor, torch.Tensor]
MAX_ROWS = 600


def pairs() -> Iterator[Pair]:
    """A query and a document, each request's rows with its neighbour's, and normalised ones of real width."""
    for batch in drawn():
        if batch.finite:
            yield from (
                (query, document)
                for query, document in zip(batch.rows, batch.rows[1:], strict=False)
                if len(query) <= MAX_ROWS and len(document) <= MAX_ROWS
            )
    generator = torch.Generator().manual_seed(1)
    for lengths in ((1, 1), (32, 512), (7, 4096), (128, 1)):
        query, document = (torch.randn(length, 128, generator=generator) for length in lengths)
        yield torch.nn.functional.normalize(query, dim=-1), torch.nn.functional.normalize(document, dim=-1)


def assert_within(score: torch.Tensor, due: Approx) -> None:
    assert not due.wrong(score.float().reshape(due.shape)).any()


def test_the_value_is_numpys_in_float64() -> None:
    for query, document in pairs():
        left, right = query.double().numpy(), document.double().numpy()
        exact = sum(max(float(np.dot(ours, theirs)) for theirs in right) for ours in left[:40])
        value = float(maxsim(query[:40], document).value)
        assert abs(value - exact) <= 1e-12 * max(1.0, float(np.abs(left[:40] @ right.T).max() * len(left)))


def test_sentence_transformers_lies_within() -> None:
    score = peer("sentence_transformers.util").maxsim_pairwise
    for query, document in pairs():
        assert_within(score([query.float()], [document.float()]), maxsim(query, document))


def test_maxsim_cpu_lies_within() -> None:
    score = peer("maxsim_cpu").maxsim_scores_variable
    for query, document in pairs():
        made = score(query.float().numpy(), [document.float().numpy()])
        assert_within(torch.from_numpy(made), maxsim(query, document))


# Where a peer differs on purpose.


def test_sentence_transformers_takes_a_row_of_zeros_for_padding_where_documents_come_in_one_tensor() -> None:
    # To the reference, which knows no padding, a row of zeros is a row: its product is 0, which beats -3.
    score = peer("sentence_transformers.util").maxsim_pairwise
    query, document = torch.tensor([[1.0, 0.0]]), torch.tensor([[-3.0, 0.0], [0.0, 0.0]])
    assert score(query[None], document[None]).tolist() == [-3] == [float(maxsim(query, document[:1]).value)]
    assert score([query], [document]).tolist() == [0] == [float(maxsim(query, document).value)]
