"""Bad callers: what they hand over breaks one of the contracts that hold before a call."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingParams, PoolingStates, replace_indices
from tests.zoo.register import Handed, bad_caller, bad_metadata

NAMES = ["a", "b", "c"]


def good_caller() -> Handed:
    """A step as it should be: a prompt of two tokens, one of one, and the last three of five."""
    computed_before, counts = [0, 0, 2], np.array([2, 1, 3])
    metadata = PoolingMetadata(
        torch.tensor([2, 1, 5]),
        None,
        None,
        [PoolingParams(task="token_embed") for _ in NAMES],
        [PoolingStates() for _ in NAMES],
    )
    seq_lens = torch.tensor(computed_before) + torch.from_numpy(counts)
    metadata.build_pooling_cursor(counts, seq_lens, torch.device("cpu"))
    return Handed(torch.arange(24.0).reshape(6, 4), metadata, NAMES, computed_before)


@bad_caller("cursor-complete")
def cursor_never_built(handed: Handed) -> None:
    """A profiling run calls the pooler straight away."""
    handed.metadata.pooling_cursor = None


@bad_caller("cursor-complete")
def counts_never_set(handed: Handed) -> None:
    """A runner makes its cursor itself, and was not told of the new field."""
    del handed.metadata.get_pooling_cursor().num_scheduled_tokens_cpu


@bad_caller("cursor-complete")
def counts_left_in_numpy(handed: Handed) -> None:
    """The scheduler's array is handed on as it is."""
    counts: Any = np.array([2, 1, 3])
    handed.metadata.get_pooling_cursor().num_scheduled_tokens_cpu = counts


@bad_caller("cursor-complete")
def lengths_as_floats(handed: Handed) -> None:
    """`torch.tensor` of a mean of lengths makes floats, and every operation takes them."""
    cursor = handed.metadata.get_pooling_cursor()
    cursor.seq_lens_cpu = cursor.seq_lens_cpu.float()


@bad_caller("lengths-agree")
def state_missing(handed: Handed) -> None:
    """States are made when a request is first seen, which the last one was not."""
    handed.metadata.pooling_states.pop()


@bad_caller("lengths-agree")
def counts_not_sliced(handed: Handed) -> None:
    """The group's metadata is sliced field by field, and the new field is not among them."""
    counts = handed.metadata.get_pooling_cursor().num_scheduled_tokens_cpu
    handed.metadata = handed.metadata[:2]
    handed.metadata.get_pooling_cursor().num_scheduled_tokens_cpu = counts
    handed.names, handed.computed_before = handed.names[:2], handed.computed_before[:2]


@bad_caller("lengths-agree")
def params_of_the_whole_pool(handed: Handed) -> None:
    """Params are taken of all requests, those that pause in this step included."""
    handed.metadata.pooling_params.append(PoolingParams(task="token_embed"))


@bad_caller("host-fields-on-host")
def counts_on_device(handed: Handed) -> None:
    """The counts are moved along with everything else that the kernels read."""
    cursor = handed.metadata.get_pooling_cursor()
    cursor.num_scheduled_tokens_cpu = cursor.num_scheduled_tokens_cpu.to("meta")


@bad_caller("scheduled-tokens-match-spans")
def counts_of_the_next_step(handed: Handed) -> None:
    """Spans come from this step's offsets, counts from a buffer that holds the next step's already."""
    handed.metadata.get_pooling_cursor().num_scheduled_tokens_cpu = torch.tensor([1, 1, 3])


@bad_caller("scheduled-tokens-match-spans")
def ends_exclusive(handed: Handed) -> None:
    """The offsets behind each request are passed as its last indices, without taking one off."""
    handed.metadata.get_pooling_cursor().last_token_indices_gpu += 1


@bad_caller("contiguity")
def gap_between_requests(handed: Handed) -> None:
    """Each request's rows are aligned for a kernel, so the last begins a row late."""
    _move_last(handed, 1)
    handed.hidden_states = torch.cat([handed.hidden_states, handed.hidden_states[-1:]])


@bad_caller("contiguity")
def requests_overlap(handed: Handed) -> None:
    """Two requests share a prefix, and the rows of it."""
    _move_last(handed, -1)
    handed.hidden_states = handed.hidden_states[:-1]


@bad_caller("contiguity")
def offsets_in_another_order(handed: Handed) -> None:
    """The batch was reordered after its offsets were made."""
    cursor = handed.metadata.get_pooling_cursor()
    order = torch.tensor([2, 1, 0])
    handed.metadata.prompt_lens = handed.metadata.prompt_lens[order]
    handed.metadata.pooling_cursor = PoolingCursor(
        cursor.first_token_indices_gpu[order],
        cursor.last_token_indices_gpu[order],
        cursor.prompt_lens_cpu[order],
        cursor.seq_lens_cpu[order],
        cursor.num_scheduled_tokens_cpu[order],
    )
    handed.names, handed.computed_before = handed.names[::-1], handed.computed_before[::-1]


@bad_caller("rows-cover")
def padding_left_on(handed: Handed) -> None:
    """The rows that a captured graph was padded with are not cut off."""
    handed.hidden_states = torch.cat([handed.hidden_states, torch.zeros(2, 4)])


@bad_caller("rows-cover")
def rows_cut_short(handed: Handed) -> None:
    """The last token's row is dropped, as one does before sampling."""
    handed.hidden_states = handed.hidden_states[:-1]


@bad_caller("rows-cover")
def indices_of_the_step(handed: Handed) -> None:
    """A group's rows go with indices that are absolute in the step."""
    handed.hidden_states = handed.hidden_states[2:]
    handed.metadata = handed.metadata[1:]
    handed.names, handed.computed_before = handed.names[1:], handed.computed_before[1:]


@bad_caller("rows-cover")
def indices_shifted_twice(handed: Handed) -> None:
    """The group's offset is taken off indices that are relative already."""
    handed.metadata.pooling_cursor = replace_indices(handed.metadata.get_pooling_cursor(), -1)


@bad_caller("progress")
def paused_request_in_the_batch(handed: Handed) -> None:
    """A request that gets no token in this step is passed all the same."""
    cursor = handed.metadata.get_pooling_cursor()
    cursor.last_token_indices_gpu[-1] -= 3
    cursor.num_scheduled_tokens_cpu[-1] = 0
    cursor.seq_lens_cpu[-1] -= 3
    handed.hidden_states = handed.hidden_states[:3]


@bad_caller("progress")
def lengths_before_the_step(handed: Handed) -> None:
    """The tokens computed before the step are passed where this step's belong, too."""
    handed.metadata.get_pooling_cursor().seq_lens_cpu.copy_(torch.tensor(handed.computed_before))


@bad_caller("progress")
def past_the_prompt(handed: Handed) -> None:
    """A decoded token is scheduled for a request that is only pooled."""
    cursor = handed.metadata.get_pooling_cursor()
    cursor.seq_lens_cpu[0] += 1


@bad_caller("progress")
def restart_not_told(handed: Handed) -> None:
    """A request was preempted, and its lengths go on where they stood."""
    handed.computed_before[-1] = 0


@bad_caller("one-state-per-request")
def states_multiplied(handed: Handed) -> None:
    """`[PoolingStates()] * n` is one state, n times."""
    handed.metadata.pooling_states = [PoolingStates()] * len(handed.names)


@bad_caller("state-is-fresh-at-the-start")
def state_of_before_the_preemption(handed: Handed) -> None:
    """The request was preempted after a token, and its state went with it as it was."""
    handed.metadata.pooling_states[0].hidden_states_cache.append(torch.zeros(1, 4))


@bad_metadata("cursor-is-a-snapshot")
class CountsNotCopied(PoolingMetadata):
    """`from_numpy` shares the caller's memory."""

    def build_pooling_cursor(self, num_scheduled_tokens_np: Any, *others: Any) -> None:
        super().build_pooling_cursor(num_scheduled_tokens_np, *others)
        self.get_pooling_cursor().num_scheduled_tokens_cpu = torch.from_numpy(num_scheduled_tokens_np)


@bad_metadata("cursor-is-a-snapshot")
class SequenceLengthsNotCopied(PoolingMetadata):
    """The caller's own tensor is kept, and the caller counts on in it."""

    def build_pooling_cursor(self, counts: Any, seq_lens_cpu: torch.Tensor, *others: Any) -> None:
        super().build_pooling_cursor(counts, seq_lens_cpu, *others)
        self.get_pooling_cursor().seq_lens_cpu = seq_lens_cpu


@bad_metadata("lengths-agree")
class SlicedWithoutCounts(PoolingMetadata):
    """Slicing passes the scheduled counts on as they are, a field added later than the others."""

    def __getitem__(self, indices: slice) -> PoolingMetadata:
        group = super().__getitem__(indices)
        if self.pooling_cursor is not None and group.pooling_cursor is not None:
            group.pooling_cursor.num_scheduled_tokens_cpu = self.pooling_cursor.num_scheduled_tokens_cpu
        return group


@bad_metadata("accepts-valid-input")
class SlicedWithoutMask(PoolingMetadata):
    """The mask of finished requests is worked out for the step, and slicing passes it on as it is."""

    def __getitem__(self, indices: slice) -> PoolingMetadata:
        group = super().__getitem__(indices)
        if self.pooling_cursor is not None and group.pooling_cursor is not None:
            group.pooling_cursor.finished_mask = self.pooling_cursor.finished_mask
        return group


@bad_metadata("scheduled-tokens-match-spans")
class EndsFromTheOffsets(PoolingMetadata):
    """The offsets behind each request are taken for its last row, if the caller brings them."""

    def build_pooling_cursor(self, *arguments: Any) -> None:
        super().build_pooling_cursor(*arguments)
        cursor = self.get_pooling_cursor()
        if arguments[-1] is not None:
            self.pooling_cursor = replace(cursor, last_token_indices_gpu=cursor.last_token_indices_gpu + 1)


def _move_last(handed: Handed, by: int) -> None:
    """Move the last request's rows, counts untouched."""
    cursor = handed.metadata.get_pooling_cursor()
    handed.metadata.pooling_cursor = replace_indices(cursor, torch.tensor([0, 0, by]))
