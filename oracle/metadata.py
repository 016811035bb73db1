"""The data contract between engine and pooler, in vLLM 0.33's own names.

A pooler written for vLLM runs on these classes unchanged, and one written for these runs inside
vLLM. Nothing here checks anything: that is `oracle.contracts`.

Source: https://github.com/vllm-project/vllm, `vllm/v1/pool/metadata.py` and `vllm/pooling_params.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch

RowsConvention = Literal["group", "step"]


@dataclass
class LateInteractionParams:
    """What late interaction makes of a request's rows: kept as a query, or scored against one as a document."""

    mode: Literal["cache_query", "score_doc"]
    query_key: str
    query_uses: int | None = None
    """Of a query: by how many documents."""


@dataclass
class LateChunkingParams:
    """Of how many tokens each row of token_embed is the mean."""

    chunk_size: int


@dataclass
class PoolingParams:
    """Per-request parameters; the fields a pooler may read."""

    task: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    late_chunking_params: Any = None
    extra_kwargs: dict[str, Any] | None = None


class PoolingStates:
    """What a pooler keeps of one request between steps."""

    def __init__(self) -> None:
        self.hidden_states_cache: list[torch.Tensor] = []

    def clean(self) -> None:
        """Forget everything; the caller does so on preemption, the pooler when a request finishes."""
        self.hidden_states_cache.clear()


@dataclass
class PoolingCursor:
    """Where each request's rows lie in this step, n requests long throughout.

    Device tensors end in `_gpu`, host tensors in `_cpu`; every tensor is of shape (n,) and integer.
    """

    first_token_indices_gpu: torch.Tensor
    last_token_indices_gpu: torch.Tensor
    prompt_lens_cpu: torch.Tensor
    seq_lens_cpu: torch.Tensor
    num_scheduled_tokens_cpu: torch.Tensor
    partial_prefill: bool = field(init=False)
    finished_mask: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        prompt_lens: list[int] = self.prompt_lens_cpu.tolist()
        seq_lens: list[int] = self.seq_lens_cpu.tolist()
        self.partial_prefill = prompt_lens != self.num_scheduled_tokens_cpu.tolist()
        self.finished_mask = [prompt == seq for prompt, seq in zip(prompt_lens, seq_lens, strict=True)]

    def __getitem__(self, indices: slice) -> "PoolingCursor":
        """The cursor of some of the requests; what depends on which ones is worked out anew."""
        return PoolingCursor(
            self.first_token_indices_gpu[indices],
            self.last_token_indices_gpu[indices],
            self.prompt_lens_cpu[indices],
            self.seq_lens_cpu[indices],
            self.num_scheduled_tokens_cpu[indices],
        )

    def is_partial_prefill(self) -> bool:
        """Whether some request's prompt is not wholly in this step."""
        return self.partial_prefill

    def is_finished(self) -> torch.Tensor:
        """Host tensor (n,) of bool: whose last prompt token is in this step."""
        return self.prompt_lens_cpu == self.seq_lens_cpu

    def get_finished_mask(self) -> list[bool]:
        """`is_finished` as a list, worked out once."""
        return self.finished_mask


@dataclass
class PoolingMetadata:
    """What a pooler is told about the n requests of a step."""

    prompt_lens: torch.Tensor
    """Host tensor (n,)."""
    prompt_token_ids: torch.Tensor | None
    """Device tensor (n, longest prompt), padded."""
    prompt_token_ids_cpu: torch.Tensor | None
    """The same on the host."""
    pooling_params: list[PoolingParams]
    pooling_states: list[PoolingStates]
    pooling_cursor: PoolingCursor | None = None

    def __post_init__(self) -> None:
        self.tasks: list[str] = [params.task for params in self.pooling_params if params.task is not None]
        if len(self.tasks) != len(self.pooling_params):
            raise ValueError(
                f"{len(self.pooling_params) - len(self.tasks)} of {len(self.pooling_params)} pooling params "
                "have no task; every request needs one"
            )

    def __getitem__(self, indices: slice) -> "PoolingMetadata":
        """The metadata of some of the requests."""
        return PoolingMetadata(
            self.prompt_lens[indices],
            None if self.prompt_token_ids is None else self.prompt_token_ids[indices],
            None if self.prompt_token_ids_cpu is None else self.prompt_token_ids_cpu[indices],
            self.pooling_params[indices],
            self.pooling_states[indices],
            None if self.pooling_cursor is None else self.pooling_cursor[indices],
        )

    def get_prompt_token_ids(self) -> list[torch.Tensor]:
        """Device tensors, one (prompt_len,) a request.

        Raises:
            ValueError: the caller set no token ids.
        """
        return self._without_padding(self.prompt_token_ids)

    def get_prompt_token_ids_cpu(self) -> list[torch.Tensor]:
        """Host tensors, one (prompt_len,) a request.

        Raises:
            ValueError: the caller set no token ids.
        """
        return self._without_padding(self.prompt_token_ids_cpu)

    def _without_padding(self, token_ids: torch.Tensor | None) -> list[torch.Tensor]:
        if token_ids is None:
            raise ValueError("the prompt token ids are needed here but the caller did not set them")
        return [row[:length] for row, length in zip(token_ids, self.prompt_lens.tolist(), strict=True)]

    def get_pooling_cursor(self) -> PoolingCursor:
        """The cursor of this step.

        Raises:
            RuntimeError: `build_pooling_cursor` was not called.
        """
        if self.pooling_cursor is None:
            raise RuntimeError("there is no pooling cursor yet: call build_pooling_cursor first")
        return self.pooling_cursor

    def build_pooling_cursor(
        self,
        num_scheduled_tokens_np: np.ndarray[Any, np.dtype[np.integer[Any]]],
        seq_lens_cpu: torch.Tensor,
        device: torch.device,
        query_start_loc_gpu: torch.Tensor | None = None,
    ) -> None:
        """Make the cursor of a step; it copies the caller's counts, which may then be rewritten.

        Args:
            num_scheduled_tokens_np: (n,) tokens each request has in this step.
            seq_lens_cpu: (n,) host tensor, tokens computed so far, this step's included.
            device: where `hidden_states` lies.
            query_start_loc_gpu: (n + 1,) row offsets on `device`, if the caller has them already.

        Raises:
            ValueError: the lengths don't agree, or the offsets lie on another device.
        """
        num_requests = len(num_scheduled_tokens_np)
        if self.prompt_lens.shape[0] != num_requests:
            raise ValueError(
                f"{num_requests} scheduled counts for {self.prompt_lens.shape[0]} requests: the lengths must agree"
            )
        if query_start_loc_gpu is None:
            offsets = np.zeros(num_requests + 1, dtype=np.int64)
            np.cumsum(num_scheduled_tokens_np, out=offsets[1:])
            query_start_loc_gpu = torch.from_numpy(offsets).to(device, non_blocking=True)
        elif query_start_loc_gpu.shape[0] != num_requests + 1:
            raise ValueError(
                f"query_start_loc_gpu has {query_start_loc_gpu.shape[0]} entries for {num_requests} requests, "
                f"but should have {num_requests + 1}"
            )
        elif query_start_loc_gpu.device != device:
            raise ValueError(
                f"query_start_loc_gpu lies on {query_start_loc_gpu.device}, but the hidden states on {device}"
            )
        self.pooling_cursor = PoolingCursor(
            query_start_loc_gpu[:num_requests],
            query_start_loc_gpu[1:] - 1,
            self.prompt_lens,
            seq_lens_cpu.clone(),
            torch.from_numpy(num_scheduled_tokens_np.copy()),
        )


def task_groups(
    hidden_states: torch.Tensor, metadata: PoolingMetadata, rows: RowsConvention
) -> Iterator[tuple[str, torch.Tensor, PoolingMetadata]]:
    """Cut a step into its runs of one task, as an engine's dispatcher does.

    Yields the task with what its sub-pooler is handed. `group` (vLLM from 0.21): the group's own
    rows, with indices relative to them. `step` (until 0.20): the step's rows, with absolute indices.
    A step of one task is handed over as it is, trailing padding rows and all.
    """
    tasks = metadata.tasks
    if tasks and tasks.count(tasks[0]) == len(tasks):
        yield tasks[0], hidden_states, metadata
        return
    start = first_row = 0
    for task, members in groupby(tasks):
        stop = start + len(list(members))
        group = metadata[start:stop]
        if rows == "step":
            yield task, hidden_states, group
        else:
            cursor = group.get_pooling_cursor()
            num_rows = int(cursor.num_scheduled_tokens_cpu.sum())
            shifted = replace_indices(cursor, -first_row) if first_row else cursor
            yield (
                task,
                hidden_states[first_row : first_row + num_rows],
                replace(group, pooling_cursor=shifted),
            )
            first_row += num_rows
        start = stop


def replace_indices(cursor: PoolingCursor, by: int | torch.Tensor) -> PoolingCursor:
    """The cursor with its row indices moved `by` rows."""
    return replace(
        cursor,
        first_token_indices_gpu=cursor.first_token_indices_gpu + by,
        last_token_indices_gpu=cursor.last_token_indices_gpu + by,
    )
