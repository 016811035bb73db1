"""Right poolers taken apart at the joints where members of the zoo go wrong.

A member overrides one joint. That these bases are right is a test of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from impl.config import HeadConfig, Outputs, PoolerConfig
from impl.hostsplit import HostSplit
from impl.methods import Methods, scheduled_counts
from impl.pooler import DENSE_AND_SPARSE, TOKEN_TASKS, Pooler, apply_head, joined
from impl.special import without_special_tokens
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingParams, PoolingStates, task_groups

Bounds = list[tuple[int, int]]


def spans(cursor: PoolingCursor) -> Bounds:
    """First row and end, exclusive, of each request."""
    bounds = zip(cursor.first_token_indices_gpu.tolist(), cursor.last_token_indices_gpu.tolist(), strict=True)
    return [(first, last + 1) for first, last in bounds]


class Cut(HostSplit):
    """Slices each request by its bounds; refuses whatever a plain split refuses."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        super().chunks(hidden_states, cursor)
        return [hidden_states[first:end] for first, end in self.bounds(cursor)]

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return spans(cursor)


class Chunked(HostSplit):
    """ALL pooling over what the states keep; with chunked prefill off, each prompt is one chunk."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        cursor = metadata.get_pooling_cursor()
        chunks = self.chunks(hidden_states, cursor)
        outputs: list[torch.Tensor | None] = []
        for chunk, state, finished in zip(chunks, metadata.pooling_states, self.finished(cursor), strict=True):
            if finished:
                outputs.append(self.finish(state, chunk))
            else:
                self.keep(state, chunk)
                outputs.append(None)
        return outputs

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        return cursor.get_finished_mask()

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        state.hidden_states_cache.append(chunk.clone())

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([*state.hidden_states_cache, chunk])
        state.clean()
        return rows


class Steps(HostSplit):
    """STEP pooling: the rows at the tags, in the returned columns."""

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = self.pool_all(hidden_states, metadata)
        token_ids = metadata.get_prompt_token_ids_cpu()
        return [
            rows if rows is None else self.select(rows, ids, params)
            for rows, ids, params in zip(outputs, token_ids, self.params(metadata), strict=True)
        ]

    def params(self, metadata: PoolingMetadata) -> list[PoolingParams]:
        return metadata.pooling_params

    def select(self, rows: torch.Tensor, ids: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if params.step_tag_id is not None:
            rows = rows[self.tagged(ids, params.step_tag_id)]
        return rows if params.returned_token_ids is None else rows[:, self.columns(params.returned_token_ids)]

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        return ids == tag

    def columns(self, returned_token_ids: list[int]) -> list[int]:
        return returned_token_ids


class Last(HostSplit):
    """LAST pooling by row index; refuses whatever a plain split refuses."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        cursor = metadata.get_pooling_cursor()
        self.chunks(hidden_states, cursor)
        return self.rows_at(hidden_states, cursor)

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        return hidden_states[cursor.last_token_indices_gpu]


class Means(HostSplit):
    """MEAN pooling; refuses whatever a plain split refuses."""

    def pool_mean(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        self._refuse_partial_prefill(metadata, "MEAN")
        cursor = metadata.get_pooling_cursor()
        self.chunks(hidden_states, cursor)
        return self.means(hidden_states, scheduled_counts(cursor))

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        return [self.total(chunk) / self.divisor(chunk) for chunk in hidden_states.split_with_sizes(counts)]

    def total(self, chunk: torch.Tensor) -> torch.Tensor:
        return chunk.sum(dim=0, dtype=torch.float32)

    def divisor(self, chunk: torch.Tensor) -> int:
        return chunk.shape[0]


class Layer(Pooler):
    """A whole pooler; refuses rows beyond those of the requests."""

    methods: type[Methods] = HostSplit

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config, self.methods(config))

    def __call__(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        hidden_states.split_with_sizes(scheduled_counts(metadata.get_pooling_cursor()))
        return self.serve(hidden_states, metadata)

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs: list[torch.Tensor | None] = []
        for task, rows, group in task_groups(hidden_states, metadata, self.rows):
            outputs.extend(self.heads(task, self.pool(task, rows, group), group.pooling_params))
        return outputs

    def pool(self, task: str, rows: torch.Tensor, group: PoolingMetadata) -> Outputs:
        return (self.token_method if task in TOKEN_TASKS else self.sequence_method)(rows, group)

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Sequence[torch.Tensor | None]:
        each = zip(pooled, params, strict=True)
        return [None if rows is None else self.one(task, rows, own) for rows, own in each]

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return head_of(task, rows, params, self.head)


class Filtering(Layer):
    """A layer with the filter of BOS and EOS behind its heads, and with BGE-M3's task."""

    @property
    def special_token_ids(self) -> tuple[int | None, int | None]:
        return self.config.bos_token_id, self.config.eos_token_id

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs: list[torch.Tensor | None] = []
        for task, rows, group in task_groups(hidden_states, metadata, self.rows):
            outputs.extend(
                self.dense_and_sparse(rows, group) if task == DENSE_AND_SPARSE else self.results(task, rows, group)
            )
        return outputs

    def results(self, task: str, rows: torch.Tensor, group: PoolingMetadata) -> Outputs:
        results = self.heads(task, self.pool(task, rows, group), group.pooling_params)
        if task not in TOKEN_TASKS or self.special_token_ids == (None, None):
            return results
        each = zip(results, self.token_ids(group), group.pooling_params, strict=True)
        return [
            result if result is None or self.spared(params) else self.one_filtered(result, ids)
            for result, ids, params in each
        ]

    def dense_and_sparse(self, rows: torch.Tensor, group: PoolingMetadata) -> Outputs:
        return self.joined(self.results("embed", rows, group), self.results("token_classify", rows, group))

    def joined(self, vectors: Outputs, scores: Outputs) -> Outputs:
        return joined(vectors, scores)

    def spared(self, params: PoolingParams) -> bool:
        return params.late_chunking_params is not None

    def token_ids(self, group: PoolingMetadata) -> Sequence[torch.Tensor]:
        return group.get_prompt_token_ids_cpu()

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return without_special_tokens(rows, token_ids, *self.special_token_ids)


class Chunking(Layer):
    """A layer whose late chunking stands apart."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if params.late_chunking_params is None:
            return super().one(task, rows, params)
        means = self.means(rows, params.late_chunking_params.chunk_size)
        means = means.to(rows.dtype) if self.head.head_dtype is None else means
        return head_of(task, means, replace(params, late_chunking_params=None), self.head)

    def means(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        return torch.stack([chunk.mean(dim=0, dtype=torch.float32) for chunk in torch.split(rows, size)])


def head_of(task: str, rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    """One request's pooled rows through the right head."""
    (result,) = apply_head(task, [rows], [params], head)
    assert result is not None
    return result
