"""Right heads under a filter of BOS and EOS, late chunking or BGE-M3's task that does something else."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn.functional import normalize

from impl.config import Outputs
from impl.special import chunk_means, without_special_tokens
from oracle.metadata import PoolingMetadata, PoolingParams
from tests.zoo.joints import Chunking, Filtering, Layer
from tests.zoo.register import bad_layer


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class SqueezesTheTokensToo(Filtering):
    """`squeeze()` makes a vector of one score a token, and loses the tokens' axis where one token is left."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        first, last = (
            int(token_ids[at]) == special for at, special in zip((0, -1), self.special_token_ids, strict=True)
        )
        return rows[int(first) : len(rows) - int(last)].squeeze()


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class FiltersWithinThePrompt(Filtering):
    """A mask over the ids drops special tokens wherever they stand."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        keep = [token_id not in self.special_token_ids for token_id in token_ids.tolist()]
        return rows[keep].squeeze(-1)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class TakesTheEndsForSpecial(Filtering):
    """Every tokenizer adds both, so the ids are not looked at."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return rows[1:-1].squeeze(-1)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class FiltersForgettingEos(Filtering):
    """The filter was written for a model that has no EOS."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return without_special_tokens(rows, token_ids, self.special_token_ids[0], None)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class ReadsThePaddedIds(Filtering):
    """The last id is read off the padded matrix, where it is a longer prompt's padding."""

    def token_ids(self, group: PoolingMetadata) -> Sequence[torch.Tensor]:
        assert group.prompt_token_ids_cpu is not None
        return list(group.prompt_token_ids_cpu)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class IdsOfTheFirst(Filtering):
    """The prompts of a batch are taken to begin and end alike."""

    def token_ids(self, group: PoolingMetadata) -> Sequence[torch.Tensor]:
        ids = super().token_ids(group)
        return [ids[0]] * len(ids)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class KeepsTheScoresAxis(Filtering):
    """One score a token is handed out as a matrix of one column, which callers take for embeddings."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return super().one_filtered(rows, token_ids).reshape(-1, rows.shape[-1])


@bad_layer("values", serves=("ALL",), parts=("late-chunking",))
class DividesByTheChunkSize(Chunking):
    """Sums are divided by the size asked for, which the last chunk may not have."""

    def means(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        return torch.stack([chunk.sum(dim=0, dtype=torch.float32) / size for chunk in torch.split(rows, size)])


@bad_layer("row-count", serves=("ALL",), parts=("late-chunking",))
class DropsWhatIsLeft(Chunking):
    """A reshape to whole chunks leaves the rest of the prompt out."""

    def means(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        size = min(size, len(rows))
        whole = rows[: len(rows) // size * size]
        return whole.reshape(-1, size, rows.shape[-1]).mean(dim=1, dtype=torch.float32)


@bad_layer("values", serves=("ALL",), parts=("late-chunking",))
class AveragesInTheModelsDtype(Chunking):
    """The sum is taken in the rows' own dtype, which has no digits for it."""

    def means(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        totals = []
        for chunk in torch.split(rows, size):
            total = torch.zeros_like(chunk[0])
            for row in chunk:
                total = total + row
            totals.append((total / len(chunk)).float())
        return torch.stack(totals)


@bad_layer("values", serves=("ALL",), parts=("late-chunking",))
class ChunksAfterTheHead(Layer):
    """Tokens are normalised first, and the means of unit vectors are none."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if params.late_chunking_params is None:
            return super().one(task, rows, params)
        made = super().one(task, rows, replace(params, late_chunking_params=None))
        return chunk_means(made, params.late_chunking_params.chunk_size).to(made.dtype)


@bad_layer("row-count", serves=("ALL",), parts=("late-chunking",))
class ChunkSizeOfTheFirst(Layer):
    """The size of the chunks is read once a batch."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Sequence[torch.Tensor | None]:
        first = params[0].late_chunking_params
        return super().heads(task, pooled, [replace(own, late_chunking_params=first) for own in params])


@bad_layer("row-count", serves=("ALL",), parts=("late-chunking", "bos-eos-filter"))
class FiltersChunksToo(Filtering):
    """The filter takes the first and last chunk for the rows of BOS and EOS."""

    def spared(self, params: PoolingParams) -> bool:
        return False


@bad_layer("values", serves=("ALL", "LAST"), parts=("dense-and-sparse",))
class SparseFirst(Filtering):
    """Scores and vector are joined the other way round."""

    def joined(self, vectors: Outputs, scores: Outputs) -> Outputs:
        return super().joined(scores, vectors)


@bad_layer("row-count", serves=("ALL", "LAST"), parts=("dense-and-sparse", "bos-eos-filter"))
class SparseUnfiltered(Filtering):
    """The filter was put in front of token_classify alone, not of the task that has it inside."""

    def dense_and_sparse(self, rows: torch.Tensor, group: PoolingMetadata) -> Outputs:
        vectors = self.heads("embed", self.pool("embed", rows, group), group.pooling_params)
        scores = self.heads("token_classify", self.pool("token_classify", rows, group), group.pooling_params)
        return self.joined(vectors, scores)


@bad_layer("values", serves=("ALL", "LAST"), parts=("dense-and-sparse",))
class NormalizesAllOfIt(Filtering):
    """The result is taken for an embedding, and scores are scaled with the vector."""

    def dense_and_sparse(self, rows: torch.Tensor, group: PoolingMetadata) -> Outputs:
        results = super().dense_and_sparse(rows, group)
        each = zip(results, group.pooling_params, strict=True)
        return [normalize(row, dim=-1) if own.use_activation and row is not None else row for row, own in each]


@bad_layer("values", serves=("ALL", "LAST"), parts=("dense-and-sparse",))
class ScoresOfTheNeighbour(Filtering):
    """The two lists of results are zipped in different orders."""

    def joined(self, vectors: Outputs, scores: Outputs) -> Outputs:
        widths = [None if row is None else row.numel() for row in scores]
        return super().joined(vectors, list(reversed(scores)) if widths == widths[::-1] else scores)
