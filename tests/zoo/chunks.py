"""Prompts that come in several chunks, joined wrongly."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch

from impl.config import PoolerConfig
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingStates
from tests.zoo.joints import Chunked
from tests.zoo.register import bad


@bad("row-count")
class LastChunkLost(Chunked):
    """Only what was kept is joined; the chunk at hand is forgotten."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        if not state.hidden_states_cache:
            return chunk.clone()
        rows = torch.cat(state.hidden_states_cache)
        state.clean()
        return rows


@bad("row-count")
class EarlierChunksLost(Chunked):
    """The state is cleaned before its rows are joined."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        state.clean()
        return super().finish(state, chunk)


@bad("values")
class LastChunkFirst(Chunked):
    """The chunk at hand is put in front of those that were kept."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([chunk, *state.hidden_states_cache])
        state.clean()
        return rows


@bad("values")
class KeptBackwards(Chunked):
    """Chunks are kept like a stack, the newest first: it takes three to see it."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        state.hidden_states_cache.insert(0, chunk.clone())


@bad("row-count")
class OnlyTheLatestKept(Chunked):
    """The cache is assigned where it should be appended to: it takes three chunks to see it."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        state.hidden_states_cache = [chunk.clone()]


@bad("row-count")
class SecondChunkLost(Chunked):
    """Chunks are joined in pairs, which drops what lies between the first and the last."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([*state.hidden_states_cache[:1], chunk])
        state.clean()
        return rows


@bad("state-cleared")
class NeverCleaned(Chunked):
    """The join was written without a thought of the next request in the slot."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        return torch.cat([*state.hidden_states_cache, chunk])


@bad("state-cleared")
class CleanedUnlessOneChunk(Chunked):
    """A shortcut for a last chunk of one row returns before the state is cleaned."""

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        if chunk.shape[0] == 1:
            return torch.cat([*state.hidden_states_cache, chunk])
        return super().finish(state, chunk)


@bad("row-count")
class OneCacheForAll(Chunked):
    """The cache is an attribute of the pooler, so all requests share it."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.shared = PoolingStates()

    def keep(self, _: PoolingStates, chunk: torch.Tensor) -> None:
        super().keep(self.shared, chunk)

    def finish(self, _: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        return super().finish(self.shared, chunk)


@bad("row-count", "state-is-bounded", "state-is-fresh-at-the-start")
class KeptOverARestart(Chunked):
    """Rows are kept in an attribute that `clean` knows nothing of, so a preempted prompt comes twice."""

    def keep(self, state: Any, chunk: torch.Tensor) -> None:
        state.chunks = [*getattr(state, "chunks", []), chunk.clone()]

    def finish(self, state: Any, chunk: torch.Tensor) -> torch.Tensor:
        return torch.cat([*vars(state).pop("chunks", []), chunk])


@bad("row-count", "values")
class FillPositionOverARestart(Chunked):
    """Room for the whole prompt is made at once, and where to go on is not reset on preemption."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        cursor = metadata.get_pooling_cursor()
        outputs: list[torch.Tensor | None] = []
        pieces = zip(
            self.chunks(hidden_states, cursor),
            metadata.pooling_states,
            cursor.prompt_lens_cpu.tolist(),
            cursor.get_finished_mask(),
            strict=True,
        )
        for chunk, state, prompt_len, finished in pieces:
            filled = vars(state).setdefault("filled", 0)
            if not state.hidden_states_cache:
                state.hidden_states_cache.append(chunk.new_zeros(prompt_len, chunk.shape[1]))
            room = state.hidden_states_cache[0][filled : filled + len(chunk)]
            room[:] = chunk[: len(room)]
            vars(state)["filled"] = filled + len(chunk)
            outputs.append(state.hidden_states_cache[0] if finished else None)
            if finished:
                state.clean()
        return outputs


@bad("row-count", "values")
class CacheByPlaceInTheBatch(Chunked):
    """Rows are kept by the request's place in the batch, as if it stayed there."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.by_place: defaultdict[int, PoolingStates] = defaultdict(PoolingStates)

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        states = [self.by_place[place] for place in range(len(metadata.pooling_states))]
        return super().pool_all(hidden_states, replace(metadata, pooling_states=states))


@bad("row-count")
class PausedRequestDropped(Chunked):
    """A request that is not in the batch is taken for one that has left."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.in_batch: list[PoolingStates] = []

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        for state in self.in_batch:
            if not any(state is here for here in metadata.pooling_states):
                state.clean()
        self.in_batch = metadata.pooling_states
        return super().pool_all(hidden_states, metadata)


@bad("none-iff-unfinished")
class FinishedStateReused(Chunked):
    """A mark on the state keeps a request from finishing twice, and the next in the slot from finishing at all."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_all(hidden_states, metadata)
        for place, state in enumerate(metadata.pooling_states):
            if outputs[place] is not None and vars(state).get("finished"):
                outputs[place] = None
            vars(state)["finished"] = outputs[place] is not None
        return outputs


@bad("one-output-per-request", serves=("STEP",))
class NoneTwice(Chunked):
    """One loop puts None for an unfinished request, and the next loop does so again."""

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs: list[torch.Tensor | None] = []
        for rows in super().pool_step(hidden_states, metadata):
            if rows is None:
                outputs.append(None)
            outputs.append(rows)
        return outputs


@bad("one-output-per-request")
class NoneMissing(Chunked):
    """Only finished requests are handed back."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return [rows for rows in super().pool_all(hidden_states, metadata) if rows is not None]


@bad("none-iff-unfinished")
class FinishedIfWhole(Chunked):
    """Finished is taken to mean that the whole prompt is in this step."""

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        lengths = cursor.prompt_lens_cpu.tolist()
        return [count == length for count, length in zip(scheduled_counts(cursor), lengths, strict=True)]


@bad("none-iff-unfinished")
class FinishedOneTokenEarly(Chunked):
    """Lengths are compared as positions, of which the last is one less."""

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        return (cursor.seq_lens_cpu >= cursor.prompt_lens_cpu - 1).tolist()


@bad("none-iff-unfinished")
class FinishedLikeTheFirst(Chunked):
    """The batch is finished if its first request is."""

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        mask = cursor.get_finished_mask()
        return mask[:1] * len(mask)


@bad("none-iff-unfinished")
class FinishedTogether(Chunked):
    """`is_partial_prefill` speaks of the batch, and is asked about each request."""

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        return [not cursor.is_partial_prefill()] * len(scheduled_counts(cursor))


@bad("none-iff-unfinished")
class ChunkedFlagReversed(Chunked):
    """The shortcut for engines without chunked prefill is taken by those that have it."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        if self.enable_chunked_prefill:
            return [chunk.clone() for chunk in self.chunks(hidden_states, metadata.get_pooling_cursor())]
        return super().pool_all(hidden_states, metadata)


@bad("none-iff-unfinished")
class NothingInsteadOfNone(Chunked):
    """An unfinished request gets a tensor of no rows, so that the type checker is content."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return [hidden_states[:0] if rows is None else rows for rows in super().pool_all(hidden_states, metadata)]


@bad("none-iff-unfinished")
class FinishedFirst(Chunked):
    """Results are gathered as they finish, and the list is filled up with None."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_all(hidden_states, metadata)
        finished = [rows for rows in outputs if rows is not None]
        return finished + [None] * (len(outputs) - len(finished))
