"""The whole layer over `packed`: the head runs on packed rows, once for all requests of a task."""

from collections.abc import Sequence

import torch

from impl.config import HeadConfig, Outputs, PoolerConfig
from impl.packed import Packed
from impl.pooler import DENSE_AND_SPARSE, TOKEN_TASKS, apply_head, filtered, filters, finish, joined, learned
from oracle.metadata import PoolingMetadata, PoolingParams, task_groups


class PackedPooler:
    """Serves embed, classify, token_embed and token_classify, mixed within a step, and BGE-M3's task."""

    def __init__(self, config: PoolerConfig) -> None:
        self.config = config
        self.filters = filters(config)
        self.methods = Packed(config)
        self.token_method = self.methods.method(config.tok_pooling_type)
        self.sequence_method = self.methods.method(config.seq_pooling_type)

    def __call__(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Outputs:
        """Pool a step of mixed tasks.

        Args:
            hidden_states: (rows, hidden_size).
            metadata: of all the step's requests.

        Returns:
            One entry a request, in batch order.
        """
        serve = self._filtered if self.filters else self._pool
        outputs = [serve(*group) for group in task_groups(hidden_states, metadata, "group")]
        return outputs[0] if len(outputs) == 1 else [output for several in outputs for output in several]

    def _filtered(self, task: str, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Outputs:
        outputs = self._pool(task, hidden_states, metadata)
        return filtered(outputs, metadata, self.config) if task in TOKEN_TASKS else outputs

    def _pool(self, task: str, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Outputs:
        head, params = self.config.head, metadata.pooling_params
        if task == DENSE_AND_SPARSE:
            vectors = self._pool("embed", hidden_states, metadata)
            scores = self._pool("token_classify", hidden_states, metadata)
            return joined(vectors, filtered(scores, metadata, self.config) if self.filters else scores)
        if task not in TOKEN_TASKS:
            rows = learned(task, self.sequence_method(hidden_states, metadata), head)
            return finish(task, rows, params[0], head) if _alike(params) else _finish_each(task, rows, params, head)
        packed = self._packed(hidden_states, metadata)
        if packed is None:
            return apply_head(task, self.token_method(hidden_states, metadata), params, head)
        rows, counts = packed
        rows = learned(task, rows, head)
        alike = _alike(params)
        if alike:
            rows = finish(task, rows, params[0], head)
        # A head that makes nothing new hands back the buffer, or its first columns.
        outputs = self.methods.split(rows, counts, owned=rows.data_ptr() != hidden_states.data_ptr())
        return outputs if alike else _finish_each(task, outputs, params, head)

    def _packed(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> tuple[torch.Tensor, list[int]] | None:
        """All rows that the token task hands out, and how many each request gets; None if they don't lie together."""
        cursor = metadata.get_pooling_cursor()
        chunks = [own.late_chunking_params for own in metadata.pooling_params]
        if not self.methods.is_whole(cursor) or chunks.count(None) != len(chunks):
            return None
        if self.config.tok_pooling_type == "ALL":
            return hidden_states, cursor.num_scheduled_tokens_cpu.tolist()
        rows = self.methods.step_rows(hidden_states, metadata)
        return None if rows is None else (rows.packed, rows.counts)


def _alike(params: Sequence[PoolingParams]) -> bool:
    """Whether one call can serve all."""
    ways = [(own.dimensions, own.use_activation) for own in params]
    return ways.count(ways[0]) == len(ways)


def _finish_each(
    task: str, rows: Outputs, params: Sequence[PoolingParams], head: HeadConfig
) -> list[torch.Tensor | None]:
    return [None if own is None else finish(task, own, its, head) for own, its in zip(rows, params, strict=True)]
