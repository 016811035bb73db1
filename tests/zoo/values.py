"""Rows that are right, and numbers made of them that are not."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from impl.hostsplit import HostSplit
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingParams
from tests.zoo.joints import Last, Means, Steps
from tests.zoo.register import bad


@bad("values", serves=("MEAN",))
class MeanInModelDtype(Means):
    """The mean is taken as it comes and cast afterwards, when its precision is gone."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        return [chunk.mean(dim=0).float() for chunk in hidden_states.split_with_sizes(counts)]


@bad("values", serves=("MEAN",))
class SumInModelDtype(Means):
    """Rows are added up one by one in the model's dtype, which bfloat16 can't hold for long."""

    def total(self, chunk: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(accumulate(chunk)))[-1].float()


@bad("values", serves=("MEAN",))
class RunningSumInModelDtype(Means):
    """One running sum over the batch, in the model's dtype; each mean is a difference of two."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        return _differences(hidden_states.cumsum(0), counts)


@bad("values", serves=("MEAN",))
class RunningSumInFloat32(Means):
    """The same in float32: a nan reaches everyone behind it, and long batches cost digits."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        return _differences(hidden_states.cumsum(0, dtype=torch.float32), counts)


@bad("values", serves=("MEAN",))
class MeansByOneMatrixProduct(Means):
    """One product with a matrix of zeros and ones: zero times nan is nan, in every request."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        lengths = torch.tensor(counts, dtype=torch.long)
        place = torch.arange(len(counts)).repeat_interleave(lengths)
        belongs = (place == torch.arange(len(counts))[:, None]).float()
        return belongs @ hidden_states.float() / lengths[:, None]


@bad("values", serves=("MEAN",))
class DivisorOneTooMany(Means):
    """One is added to the divisor, so that it can't be zero."""

    def divisor(self, chunk: torch.Tensor) -> int:
        return chunk.shape[0] + 1


@bad("values", serves=("MEAN",))
class DivisorCutAt512(Means):
    """The divisor is bounded by the model's usual maximum length, which this prompt exceeds."""

    def divisor(self, chunk: torch.Tensor) -> int:
        return min(chunk.shape[0], 512)


@bad("values", serves=("MEAN",))
class OneTileOnly(Means):
    """A kernel sums a tile of 4,096 rows, and its loop over the tiles was never written."""

    def total(self, chunk: torch.Tensor) -> torch.Tensor:
        return super().total(chunk[:4096])


@bad("values", serves=("MEAN",))
class DivisorPadded(Means):
    """`mean` over the padded batch divides by the longest prompt's length."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        chunks = hidden_states.float().split_with_sizes(counts)
        padded = torch.nn.utils.rnn.pad_sequence(list(chunks), batch_first=True) if chunks else hidden_states[:0, None]
        return padded.float().mean(dim=1)


@bad("values", serves=("MEAN",))
class MeanWithoutTheLast(Means):
    """The closing special token is left out, as some model cards ask for."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        chunks = hidden_states.float().split_with_sizes(counts)
        return [chunk[: max(1, chunk.shape[0] - 1)].mean(dim=0) for chunk in chunks]


@bad("values", serves=("MEAN",))
class MeanOverNonzero(Means):
    """Padding is told by its zeros, so that a token with a zero in some column doesn't count there."""

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        chunks = hidden_states.float().split_with_sizes(counts)
        return [chunk.sum(dim=0) / chunk.count_nonzero(dim=0).clamp(min=1) for chunk in chunks]


@bad("values", serves=("ALL", "LAST"))
class NanReplaced(HostSplit):
    """Someone had a nan once and silenced it, and with it the sign of a broken model."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        return super().chunks(hidden_states.nan_to_num(), cursor)


@bad("values", serves=("LAST",))
class LastByOneHotProduct(Last):
    """Rows are picked by a product with a one-hot matrix: another request's nan comes along."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        rows = torch.arange(hidden_states.shape[0], device=hidden_states.device)
        picks = (rows == cursor.last_token_indices_gpu[:, None]).float()
        return (picks @ hidden_states.float()).to(hidden_states.dtype)


@bad("values")
class ThroughBfloat16(HostSplit):
    """Rows travel in half the bytes and are widened on arrival."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        return super().chunks(hidden_states.bfloat16().to(hidden_states.dtype), cursor)


@bad("accepts-valid-input", serves=("STEP",))
class TagsInThePadding(Steps):
    """Tags are looked for in the padded ids, which are longer than the prompt."""

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = self.pool_all(hidden_states, metadata)
        assert metadata.prompt_token_ids_cpu is not None
        each = zip(outputs, metadata.prompt_token_ids_cpu, metadata.pooling_params, strict=True)
        return [rows if rows is None else self.select(rows, ids, params) for rows, ids, params in each]


@bad("row-count", "values", serves=("STEP",))
class TagsByPlaceInTheChunk(Steps):
    """Each chunk is searched for tags before it is kept, from the prompt's beginning each time."""

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        self.asked = list(zip(metadata.get_prompt_token_ids_cpu(), metadata.pooling_params, strict=True))
        return self.pool_all(hidden_states, metadata)

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> list[torch.Tensor]:
        each = zip(super().chunks(hidden_states, cursor), self.asked, strict=True)
        return [self.select(chunk, ids[: chunk.shape[0]], params) for chunk, (ids, params) in each]


@bad("row-count", "values", serves=("STEP",))
class ParamsOfTheNeighbour(Steps):
    """Unfinished requests are left out of one list and not of the other, so params slip by one."""

    def params(self, metadata: PoolingMetadata) -> list[PoolingParams]:
        return metadata.pooling_params[1:] + metadata.pooling_params[:1]


@bad("row-count", "values", serves=("STEP",))
class TagOfTheFirst(Steps):
    """The step tag is taken for a property of the model, and read off the first request that has one."""

    def params(self, metadata: PoolingMetadata) -> list[PoolingParams]:
        own = metadata.pooling_params
        tags = [params.step_tag_id for params in own if params.step_tag_id is not None]
        return [replace(params, step_tag_id=tags[0]) if params.step_tag_id is not None else params for params in own]


@bad("row-count", serves=("STEP",))
class TagIgnored(Steps):
    """Columns are picked, rows are not."""

    def tagged(self, ids: torch.Tensor, _: int) -> torch.Tensor:
        return torch.ones_like(ids, dtype=torch.bool)


@bad("row-count", serves=("STEP",))
class TagZeroTakenForNone(Steps):
    """`if params.step_tag_id:` is false for token id 0, too."""

    def select(self, rows: torch.Tensor, ids: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return super().select(rows, ids, params if params.step_tag_id else replace(params, step_tag_id=None))


@bad("row-count", serves=("STEP",))
class LastTagOnly(Steps):
    """`argmax` finds one tag, and a prompt has several steps."""

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        found = (ids == tag).nonzero().flatten()
        return found[-1:]


@bad("row-count", serves=("STEP",))
class AllRowsIfNoTag(Steps):
    """A prompt without a tag is taken for one that asked for every row."""

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        found = ids == tag
        return found if found.any() else ~found


@bad("row-count", "values", serves=("STEP",))
class RowBeforeTheTag(Steps):
    """The score is read where the tag is predicted, one token earlier, which a tag up front doesn't have."""

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        return (ids == tag)[1:].nonzero().flatten()


@bad("values", "row-count", serves=("STEP",))
class ColumnsSorted(Steps):
    """The columns pass through a set, which drops their order and their repetitions."""

    def columns(self, returned_token_ids: list[int]) -> list[int]:
        return sorted(set(returned_token_ids))


@bad("row-count", serves=("STEP",))
class OneColumnSqueezed(Steps):
    """A single column loses its dimension, as indexing with an integer does."""

    def select(self, rows: torch.Tensor, ids: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return super().select(rows, ids, params).squeeze(1)


def _differences(running: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
    """Means out of a running sum over the batch."""
    padded = torch.cat([torch.zeros_like(running[:1]), running])
    ends = [0, *accumulate(counts)]
    return [(padded[end] - padded[end - count]).float() / count for end, count in zip(ends[1:], counts, strict=True)]
