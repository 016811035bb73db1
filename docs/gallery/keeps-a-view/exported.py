"""In step 0, request a's state holds a view of the step's hidden_states, which the
engine will overwrite.

Rows kept for a later step are copies, not views of the step's buffer.
The engine reuses the buffer for the next step.

Found on mine.py:factory by Poolproof.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mine import factory


def test_state_owns_its_rows():
    pooler = factory(
        SimpleNamespace(
            pooling_type="ALL",
            enable_chunked_prefill=True,
            async_scheduling=False,
            rows="group",
            tok_pooling_type="ALL", seq_pooling_type="LAST",
            head=SimpleNamespace(
                head_dtype=None, logit_mean=None, logit_sigma=None,
                projector=None, classifier=None,
            ),
        )
    )

    # The hidden states of each prompt, one row a token.
    a = torch.tensor([[113.0], [100.0]], dtype=torch.float32)
    a_params = PoolingParams(task="token_embed", use_activation=True)
    a_state = PoolingStates()

    # Step 0: scheduled tokens: a 1.
    hidden_states = a[0:1].clone()
    metadata = pooling_metadata(
        [a_params],
        [a_state],
        prompt_lens=[2],
        scheduled=[1],
        seq_lens=[1],
    )
    outputs = pooler(hidden_states, metadata)
    a_state_rows = [rows.clone() for rows in a_state.hidden_states_cache]
    assert len(outputs) == 1
    assert outputs[0] is None
    hidden_states.fill_(252)  # The engine reuses the buffer for the next step.
    for now, then in zip(a_state.hidden_states_cache, a_state_rows):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


def pooling_metadata(params, states, prompt_lens, scheduled, seq_lens):
    """What the engine tells a pooler about the requests of a step."""
    dtype = torch.int32
    metadata = PoolingMetadata(
        prompt_lens=torch.tensor(prompt_lens, dtype=dtype),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=params,
        pooling_states=states,
    )
    metadata.build_pooling_cursor(
        np.asarray(scheduled, dtype=np.int32),
        torch.tensor(seq_lens, dtype=dtype),
        torch.device("cpu"),
    )
    return metadata


# What an engine hands to a pooler, in vLLM 0.33's names.


@dataclass
class PoolingParams:
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
    def __init__(self) -> None:
        self.hidden_states_cache: list[torch.Tensor] = []

    def clean(self) -> None:
        self.hidden_states_cache.clear()


@dataclass
class PoolingCursor:
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
        return PoolingCursor(
            self.first_token_indices_gpu[indices],
            self.last_token_indices_gpu[indices],
            self.prompt_lens_cpu[indices],
            self.seq_lens_cpu[indices],
            self.num_scheduled_tokens_cpu[indices],
        )

    def is_partial_prefill(self) -> bool:
        return self.partial_prefill

    def is_finished(self) -> torch.Tensor:
        return self.prompt_lens_cpu == self.seq_lens_cpu

    def get_finished_mask(self) -> list[bool]:
        return self.finished_mask


@dataclass
class PoolingMetadata:
    prompt_lens: torch.Tensor
    prompt_token_ids: torch.Tensor | None
    prompt_token_ids_cpu: torch.Tensor | None
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
        return PoolingMetadata(
            self.prompt_lens[indices],
            None if self.prompt_token_ids is None else self.prompt_token_ids[indices],
            None if self.prompt_token_ids_cpu is None else self.prompt_token_ids_cpu[indices],
            self.pooling_params[indices],
            self.pooling_states[indices],
            None if self.pooling_cursor is None else self.pooling_cursor[indices],
        )

    def get_prompt_token_ids(self) -> list[torch.Tensor]:
        return self._without_padding(self.prompt_token_ids)

    def get_prompt_token_ids_cpu(self) -> list[torch.Tensor]:
        return self._without_padding(self.prompt_token_ids_cpu)

    def _without_padding(self, token_ids: torch.Tensor | None) -> list[torch.Tensor]:
        if token_ids is None:
            raise ValueError("the prompt token ids are needed here but the caller did not set them")
        return [row[:length] for row, length in zip(token_ids, self.prompt_lens.tolist(), strict=True)]

    def get_pooling_cursor(self) -> PoolingCursor:
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
