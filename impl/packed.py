"""`packed`: a step's rows stay packed, and what is done is done once a step instead of once a request.

One split hands out all views, one gather all steps, and one call of the head serves all rows. A chunk is
written once, to its place in a buffer as long as the prompt. No device read at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from impl.methods import CursorError, Methods, scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata

_FLOAT32_BYTES: Final = 4
_LARGE_BYTES: Final = 16 << 20
"""Float32 rows up to which MEAN makes them all at once; each block costs operations."""
_CACHED_BYTES: Final = 2 << 20
"""What a CPU's cache holds of them, for steps that are larger."""


@dataclass(frozen=True)
class Rows:
    """The rows of a step that its n requests are to get, in batch order; each list is n long."""

    packed: torch.Tensor
    """(sum of `counts`, columns)."""
    counts: list[int]
    """Rows of each request in this step."""
    stops: list[int]
    """Rows of each request up to the end of this step."""
    totals: list[int]
    """Rows of each request's whole prompt."""
    owned: bool
    """Whether `packed` is a copy, not the engine's buffer."""


class Packed(Methods):
    """Takes the group's own rows only: without device indices it can't know where a group starts."""

    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        """See `Methods.chunks`."""
        return hidden_states.split_with_sizes(scheduled_counts(cursor))

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """See `Methods.pool_all`."""
        cursor = metadata.get_pooling_cursor()
        counts = scheduled_counts(cursor)
        if self.is_whole(cursor):
            return self.split(hidden_states, counts, owned=False)
        rows = Rows(hidden_states, counts, cursor.seq_lens_cpu.tolist(), cursor.prompt_lens_cpu.tolist(), owned=False)
        return self._keep(hidden_states.split_with_sizes(counts), rows, metadata)

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """See `Methods.pool_step`; a state keeps the steps alone, in the returned columns."""
        rows = self.step_rows(hidden_states, metadata)
        if rows is None:
            rows = _tagged(hidden_states, metadata)
            views = rows.packed.split_with_sizes(rows.counts)
            wanted = [params.returned_token_ids for params in metadata.pooling_params]
            chunks = [_columns(view, columns) for view, columns in zip(views, wanted, strict=True)]
            return self._keep(chunks, rows, metadata)
        if self.is_whole(metadata.get_pooling_cursor()):
            return self.split(rows.packed, rows.counts, rows.owned)
        return self._keep(rows.packed.split_with_sizes(rows.counts), rows, metadata)

    def step_rows(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows | None:
        """The step's tagged rows in the returned columns, packed; None if requests differ in the columns."""
        wanted = [params.returned_token_ids for params in metadata.pooling_params]
        if wanted and wanted.count(wanted[0]) != len(wanted):
            return None
        rows = _tagged(hidden_states, metadata)
        if not wanted or not wanted[0]:
            return rows
        return replace(rows, packed=_columns(rows.packed, wanted[0]), owned=True)

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """See `Methods.pool_cls`."""
        self._refuse_partial_prefill(metadata, "CLS")
        cursor = metadata.get_pooling_cursor()
        _scheduled(cursor, hidden_states, spare_rows=True)
        return hidden_states.index_select(0, cursor.first_token_indices_gpu)

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """See `Methods.pool_last`."""
        cursor = metadata.get_pooling_cursor()
        _scheduled(cursor, hidden_states, spare_rows=True)
        return hidden_states.index_select(0, cursor.last_token_indices_gpu)

    def pool_mean(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """See `Methods.pool_mean`; each row is read once and added to its request's sum."""
        self._refuse_partial_prefill(metadata, "MEAN")
        cursor = metadata.get_pooling_cursor()
        device, (num_rows, hidden_size) = hidden_states.device, hidden_states.shape
        counts = _scheduled(cursor, hidden_states)
        lens = cursor.num_scheduled_tokens_cpu.to(device, non_blocking=True)
        sums = torch.zeros(len(counts), hidden_size, dtype=torch.float32, device=device)
        owner = torch.arange(len(counts), device=device).repeat_interleave(lens, output_size=num_rows)
        # Float32 rows are added as they lie: nothing is made, so there is nothing to keep small.
        block, row_bytes = max(1, num_rows), _FLOAT32_BYTES * hidden_size
        if hidden_states.dtype is not torch.float32 and num_rows * row_bytes > _LARGE_BYTES:
            block = max(1, (_CACHED_BYTES if device.type == "cpu" else _LARGE_BYTES) // row_bytes)
        for start in range(0, num_rows, block):
            part = slice(start, start + block)
            sums.index_add_(0, owner[part], hidden_states[part].float())
        return sums.div_(lens.unsqueeze(1))

    def is_whole(self, cursor: PoolingCursor) -> bool:
        """Whether every request of the step has its whole prompt in it."""
        return not (self.enable_chunked_prefill and cursor.is_partial_prefill())

    def split(self, packed: torch.Tensor, counts: list[int], owned: bool) -> list[torch.Tensor | None]:
        """One view a request: of a copy, if the engine may overwrite the rows before they are read.

        Raises:
            RuntimeError: the counts don't add up to the rows.
        """
        if self.clone_finished and not owned:
            packed = packed.clone()
        return list(packed.split_with_sizes(counts))

    def _keep(self, chunks: Sequence[torch.Tensor], rows: Rows, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """Hand out what is complete, and keep the chunks of the others."""
        must_copy = self.clone_finished and not rows.owned
        cursor = metadata.get_pooling_cursor()
        finished_mask = cursor.get_finished_mask() if self.enable_chunked_prefill else [True] * len(chunks)
        outputs: list[torch.Tensor | None] = []
        for chunk, count, stop, total, state, finished in zip(
            chunks, rows.counts, rows.stops, rows.totals, metadata.pooling_states, finished_mask, strict=True
        ):
            cache = state.hidden_states_cache
            if not cache:
                if stop != count:
                    raise CursorError(f"the first {stop - count} of a request's rows were never in a step")
                if finished:
                    outputs.append(chunk.clone() if must_copy else chunk)
                    continue
                cache.append(chunk.new_empty((total, chunk.shape[1])))
            cache[0][stop - count : stop] = chunk
            outputs.append(cache[0] if finished else None)
            if finished:
                state.clean()
        return outputs


def _scheduled(cursor: PoolingCursor, hidden_states: torch.Tensor, spare_rows: bool = False) -> list[int]:
    """The scheduled counts, held against the rows on the host: on a device a bad index is fatal."""
    counts = scheduled_counts(cursor)
    num_rows = hidden_states.shape[0]
    if sum(counts) > num_rows or (sum(counts) < num_rows and not spare_rows):
        raise CursorError(f"{sum(counts)} tokens are scheduled, but hidden_states has {num_rows} rows")
    return counts


def _tagged(hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
    """The rows whose prompt token is its request's step tag: found on the host, gathered at once."""
    cursor = metadata.get_pooling_cursor()
    counts = _scheduled(cursor, hidden_states)
    tags = [params.step_tag_id for params in metadata.pooling_params]
    if tags.count(None) == len(tags):
        return Rows(hidden_states, counts, cursor.seq_lens_cpu.tolist(), cursor.prompt_lens_cpu.tolist(), owned=False)
    if metadata.prompt_token_ids_cpu is None:
        raise CursorError("prompt_token_ids_cpu is not set, but is needed to find the steps")
    token_ids = metadata.prompt_token_ids_cpu.numpy()
    place = np.arange(token_ids.shape[1])
    # No token id is negative, so -1 is no token's tag; a request without a tag gets all of its rows.
    is_step = token_ids == np.array([[-1 if tag is None else tag] for tag in tags])
    if None in tags:
        is_step |= np.array([[tag is None] for tag in tags])
    is_step &= place < cursor.prompt_lens_cpu.numpy()[:, None]
    here, count = is_step, np.array(counts)
    before = cursor.seq_lens_cpu.numpy() - count
    totals = stops = here_counts = is_step.sum(1).tolist()
    if cursor.is_partial_prefill():
        seen = is_step & (place < (before + count)[:, None])
        here = seen & (place >= before[:, None])
        stops, here_counts = seen.sum(1).tolist(), here.sum(1).tolist()
    request, place = here.nonzero()
    first_row = count.cumsum() - count - before
    index = torch.from_numpy(first_row[request] + place).to(hidden_states.device, non_blocking=True)
    return Rows(hidden_states.index_select(0, index), here_counts, stops, totals, owned=True)


def _columns(rows: torch.Tensor, columns: Sequence[int] | None) -> torch.Tensor:
    if not columns:
        return rows
    return rows.index_select(1, torch.tensor(columns).to(rows.device, non_blocking=True))
