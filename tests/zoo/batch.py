"""Results that reach the wrong request of the batch."""

from typing import Any, cast

import torch

from impl.config import Outputs
from impl.grouped import Grouped
from impl.hostsplit import HostSplit
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingParams, task_groups
from tests.zoo.joints import Last, Layer
from tests.zoo.register import bad, bad_layer


@bad("values", serves=("LAST",))
class FirstResultForAll(Last):
    """The loop over the requests hands out `outputs[0]`."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_last(hidden_states, metadata)
        return [outputs[0] for _ in outputs]


@bad("values", serves=("LAST",))
class SortedByLength(Last):
    """Requests are sorted by length, as packed sequences ask for, and nobody undoes it."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        order = cursor.num_scheduled_tokens_cpu.argsort(descending=True, stable=True)
        return super().rows_at(hidden_states, cursor)[order]


@bad("values", serves=("LAST",))
class SameRowsMerged(Last):
    """Results pass through `unique` to save traffic, which also sorts them."""

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        rows = super().rows_at(hidden_states, cursor)
        merged = rows.unique(dim=0)
        return merged if len(merged) == len(rows) else rows


@bad("one-output-per-request", serves=("ALL", "LAST"))
class ResultsAsDict(HostSplit):
    """Results are keyed by the request's place, which reads well and is not what the engine walks."""

    def method(self, pooling_type: str) -> Any:
        right = super().method(pooling_type)
        return lambda hidden_states, metadata: dict(enumerate(right(hidden_states, metadata)))


@bad("one-output-per-request")
class ResultsAsGenerator(HostSplit):
    """A generator saves a list, and is empty when it is walked for the second time."""

    def method(self, pooling_type: str) -> Any:
        right = super().method(pooling_type)
        return lambda hidden_states, metadata: (rows for rows in right(hidden_states, metadata))


@bad("accepts-valid-input")
class ResultsStacked(HostSplit):
    """Results are stacked to one tensor, which the author's two prompts of one length allowed."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_all(hidden_states, metadata)
        whole = [rows for rows in outputs if rows is not None]
        return torch.stack(whole) if whole and len(whole) == len(outputs) else outputs


@bad_layer("row-count", "values", "none-iff-unfinished")
class OrderedByTask(Layer):
    """Each task's results are gathered first and joined afterwards, task by task."""

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        by_task: dict[str, list[torch.Tensor | None]] = {}
        for task, rows, group in task_groups(hidden_states, metadata, self.rows):
            results = self.heads(task, self.pool(task, rows, group), group.pooling_params)
            by_task.setdefault(task, []).extend(results)
        return [rows for results in by_task.values() for rows in results]


@bad_layer("one-output-per-request")
class OneGroupPerTask(Layer):
    """Groups are kept in a dict by task, where a task's second run replaces its first."""

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        by_task = {task: (rows, group) for task, rows, group in task_groups(hidden_states, metadata, self.rows)}
        outputs: list[torch.Tensor | None] = []
        for task, (rows, group) in by_task.items():
            outputs.extend(self.heads(task, self.pool(task, rows, group), group.pooling_params))
        return outputs


@bad_layer("row-count", "values", "none-iff-unfinished", "state-cleared")
class TaskOfTheFirst(Layer):
    """The step is served by the pooler of its first request's task, as before tasks were mixed."""

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        if not metadata.tasks:
            return []
        task = metadata.tasks[0]
        return self.heads(task, self.pool(task, hidden_states, metadata), metadata.pooling_params)


@bad_layer("accepts-valid-input")
class StepIndicesOnGroupRows(Layer):
    """The dispatcher cuts the group's rows but leaves the indices as they were in the step."""

    methods = Grouped

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs: list[torch.Tensor | None] = []
        for task, _, group in task_groups(hidden_states, metadata, "step"):
            count = sum(scheduled_counts(group.get_pooling_cursor()))
            rows, hidden_states = hidden_states[:count], hidden_states[count:]
            outputs.extend(self.heads(task, self.pool(task, rows, group), group.pooling_params))
        return outputs


@bad_layer("accepts-valid-input")
class GroupRowsByPromptLength(Layer):
    """The dispatcher cuts each group's rows by its prompts' lengths."""

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs: list[torch.Tensor | None] = []
        for task, _, group in task_groups(hidden_states, metadata, self.rows):
            count = int(group.prompt_lens.sum())
            rows, hidden_states = hidden_states[:count], hidden_states[count:]
            outputs.extend(self.heads(task, self.pool(task, rows, group), group.pooling_params))
        return outputs


@bad_layer("accepts-valid-input")
class HeadForgetsNone(Layer):
    """Each result is made contiguous for the head, though an unfinished token request has none."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> list[torch.Tensor | None]:
        each = zip(cast("list[torch.Tensor]", pooled), params, strict=True)
        return [self.one(task, rows.contiguous(), own) for rows, own in each]


@bad_layer("accepts-valid-input", serves=("LAST",))
class HeadStacksResults(Layer):
    """Results are stacked for one copy to the host, but `dimensions` makes them differ in width."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Any:
        results = [rows for rows in super().heads(task, pooled, params) if rows is not None]
        return torch.stack(results) if results else results
