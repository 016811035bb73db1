"""The data contract: slicing recomputes what depends on the slice, building copies, bad input is told."""

from typing import Any

import numpy as np
import pytest
import torch

from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates, task_groups

CPU = torch.device("cpu")


def metadata(
    prompt_lens: list[int], scheduled: list[int], seq_lens: list[int], tasks: list[str] | None = None, **build: Any
) -> PoolingMetadata:
    tasks = tasks or ["token_embed"] * len(prompt_lens)
    made = PoolingMetadata(
        torch.tensor(prompt_lens),
        None,
        None,
        [PoolingParams(task=task) for task in tasks],
        [PoolingStates() for _ in tasks],
    )
    made.build_pooling_cursor(np.array(scheduled), torch.tensor(seq_lens), build.pop("device", CPU), **build)
    return made


def test_the_cursor_says_where_rows_lie_and_who_is_finished() -> None:
    cursor = metadata([3, 5, 2], [3, 2, 1], [3, 4, 2]).get_pooling_cursor()
    assert cursor.first_token_indices_gpu.tolist() == [0, 3, 5]
    assert cursor.last_token_indices_gpu.tolist() == [2, 4, 5]
    assert cursor.get_finished_mask() == [True, False, True]
    assert cursor.is_finished().tolist() == [True, False, True]
    assert cursor.is_partial_prefill()


def test_a_slice_recomputes_what_depends_on_it() -> None:
    whole = metadata([3, 5, 2], [3, 2, 2], [3, 4, 2])
    assert whole.get_pooling_cursor().is_partial_prefill()
    first = whole[0:1].get_pooling_cursor()
    assert not first.is_partial_prefill()
    assert first.get_finished_mask() == [True]
    middle = whole[1:2]
    assert middle.tasks == ["token_embed"]
    assert middle.get_pooling_cursor().get_finished_mask() == [False]
    assert middle.get_pooling_cursor().first_token_indices_gpu.tolist() == [3]
    assert len(whole[1:1].tasks) == 0


def test_building_copies_the_callers_counts() -> None:
    counts = np.array([2, 1])
    made = metadata([2, 1], [2, 1], [2, 1])
    made.build_pooling_cursor(counts, torch.tensor([2, 1]), CPU)
    counts[:] = -1
    assert made.get_pooling_cursor().num_scheduled_tokens_cpu.tolist() == [2, 1]


def test_offsets_of_the_caller_are_used() -> None:
    offsets = torch.tensor([0, 2, 3])
    cursor = metadata([2, 1], [2, 1], [2, 1], query_start_loc_gpu=offsets).get_pooling_cursor()
    assert cursor.last_token_indices_gpu.tolist() == [1, 2]


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="1 of 2 pooling params have no task"):
        PoolingMetadata(torch.tensor([1, 1]), None, None, [PoolingParams(task="embed"), PoolingParams()], [])
    with pytest.raises(ValueError, match="1 scheduled counts for 2 requests"):
        metadata([1, 1], [1], [1, 1])
    with pytest.raises(ValueError, match="has 2 entries for 2 requests, but should have 3"):
        metadata([1, 1], [1, 1], [1, 1], query_start_loc_gpu=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="has 4 entries for 2 requests, but should have 3"):
        metadata([1, 1], [1, 1], [1, 1], query_start_loc_gpu=torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match="lies on meta, but the hidden states on cpu"):
        metadata([1], [1], [1], query_start_loc_gpu=torch.tensor([0, 1], device="meta"))
    without_cursor = PoolingMetadata(torch.tensor([1]), None, None, [PoolingParams(task="embed")], [PoolingStates()])
    with pytest.raises(RuntimeError, match="build_pooling_cursor first"):
        without_cursor.get_pooling_cursor()
    with pytest.raises(ValueError, match="token ids are needed"):
        without_cursor.get_prompt_token_ids_cpu()


def test_token_ids_come_without_padding() -> None:
    ids = torch.tensor([[1, 2, 0], [3, 4, 5]])
    made = PoolingMetadata(torch.tensor([2, 3]), ids, ids, [PoolingParams(task="embed")] * 2, [])
    assert [row.tolist() for row in made.get_prompt_token_ids()] == [[1, 2], [3, 4, 5]]
    assert [row.tolist() for row in made.get_prompt_token_ids_cpu()] == [[1, 2], [3, 4, 5]]


def test_a_mixed_step_is_cut_into_runs_of_one_task() -> None:
    tasks = ["embed", "token_embed", "token_embed", "embed"]
    rows = torch.arange(7.0)[:, None]
    whole = metadata([1, 2, 3, 1], [1, 2, 3, 1], [1, 2, 3, 1], tasks)
    groups = list(task_groups(rows, whole, "group"))
    assert [task for task, _, _ in groups] == ["embed", "token_embed", "embed"]
    assert [part.flatten().tolist() for _, part, _ in groups] == [[0], [1, 2, 3, 4, 5], [6]]
    assert [group.get_pooling_cursor().first_token_indices_gpu.tolist() for _, _, group in groups] == [[0], [0, 2], [0]]
    steps = list(task_groups(rows, whole, "step"))
    assert all(part is rows for _, part, _ in steps)
    assert [group.get_pooling_cursor().first_token_indices_gpu.tolist() for _, _, group in steps] == [[0], [1, 3], [6]]


def test_a_step_of_one_task_is_handed_over_whole() -> None:
    padded = torch.zeros(5, 1)
    ((_, rows, group),) = task_groups(padded, metadata([2, 1], [2, 1], [2, 1]), "group")
    assert rows is padded
    assert len(group.pooling_params) == 2
    assert list(task_groups(padded, metadata([], [], []), "group")) == []
