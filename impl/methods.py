"""What the poolers share: everything but how a step's rows are cut.

A subclass says how to cut (`chunks`); ALL, STEP, CLS, LAST and MEAN follow from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from impl.config import PoolerConfig
from oracle.metadata import PoolingCursor, PoolingMetadata


class CursorError(ValueError):
    """A cursor that a pooler can't work with."""


def scheduled_counts(cursor: PoolingCursor) -> list[int]:
    """The host's own scheduled counts, without asking the device.

    Raises:
        CursorError: the caller never set them, or put them on a device.
    """
    counts = getattr(cursor, "num_scheduled_tokens_cpu", None)
    if counts is None:
        raise CursorError("num_scheduled_tokens_cpu is not set on the pooling cursor; build_pooling_cursor sets it")
    if counts.device.type != "cpu":
        raise CursorError(f"num_scheduled_tokens_cpu lies on {counts.device}, but should lie on the host")
    result: list[int] = counts.tolist()
    return result


class Methods(ABC):
    """The pooling methods over one way of cutting a step."""

    def __init__(self, config: PoolerConfig) -> None:
        self.enable_chunked_prefill = config.enable_chunked_prefill
        # The next step may overwrite the hidden states before the outputs are read.
        self.clone_finished = config.async_scheduling

    @abstractmethod
    def chunks(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Sequence[torch.Tensor]:
        """Cut (rows, hidden_size) into one view a request, in batch order.

        Raises:
            CursorError, RuntimeError, IndexError: the cursor doesn't fit the rows.
        """

    def method(self, pooling_type: str) -> Any:
        """The method of a pooling type, `(hidden_states, pooling_metadata) -> outputs`."""
        return {
            "ALL": self.pool_all, "STEP": self.pool_step,
            "CLS": self.pool_cls, "LAST": self.pool_last, "MEAN": self.pool_mean,
        }[pooling_type]  # fmt: skip

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """Every row of a finished request; None while chunks are still to come."""
        cursor = metadata.get_pooling_cursor()
        chunks = self.chunks(hidden_states, cursor)
        if not self.enable_chunked_prefill:
            return [chunk.clone() for chunk in chunks] if self.clone_finished else list(chunks)
        outputs: list[torch.Tensor | None] = []
        for chunk, state, finished in zip(chunks, metadata.pooling_states, cursor.get_finished_mask(), strict=True):
            cache = state.hidden_states_cache
            if not finished:
                cache.append(chunk.clone())
                outputs.append(None)
            elif cache:
                outputs.append(torch.cat([*cache, chunk]))
                state.clean()
            else:
                outputs.append(chunk.clone() if self.clone_finished else chunk)
        return outputs

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """The rows of a finished request whose prompt token is the step tag, in the returned columns."""
        outputs = self.pool_all(hidden_states, metadata)
        token_ids = metadata.get_prompt_token_ids_cpu()
        return [
            rows if rows is None else _step_rows(rows, ids, params.step_tag_id, params.returned_token_ids)
            for rows, ids, params in zip(outputs, token_ids, metadata.pooling_params, strict=True)
        ]

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """Each request's first row, (n, hidden_size)."""
        self._refuse_partial_prefill(metadata, "CLS")
        return _rows_at(hidden_states, [chunk[0] for chunk in self._cut(hidden_states, metadata)])

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """Each request's last row of this step, (n, hidden_size)."""
        return _rows_at(hidden_states, [chunk[-1] for chunk in self._cut(hidden_states, metadata)])

    def pool_mean(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> torch.Tensor:
        """Each request's mean row, summed and returned in float32, (n, hidden_size)."""
        self._refuse_partial_prefill(metadata, "MEAN")
        means = [chunk.mean(dim=0, dtype=torch.float32) for chunk in self._cut(hidden_states, metadata)]
        return torch.stack(means) if means else hidden_states[:0].float()

    def _cut(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Sequence[torch.Tensor]:
        return self.chunks(hidden_states, metadata.get_pooling_cursor())

    @staticmethod
    def _refuse_partial_prefill(metadata: PoolingMetadata, pooling_type: str) -> None:
        if metadata.get_pooling_cursor().is_partial_prefill():
            raise CursorError(f"{pooling_type} pooling needs the whole prompt in one step")


def _rows_at(hidden_states: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows) if rows else hidden_states[:0]


def _step_rows(
    rows: torch.Tensor, token_ids: torch.Tensor, tag: int | None, columns: Sequence[int] | None
) -> torch.Tensor:
    if columns:
        rows = rows.index_select(1, torch.tensor(columns).to(rows.device, non_blocking=True))
    if tag is not None:
        # Resolved on the host, where the ids already are: a mask on the device would have to be read back.
        tagged = (token_ids == tag).nonzero().flatten()
        rows = rows.index_select(0, tagged.to(rows.device, non_blocking=True))
    return rows
