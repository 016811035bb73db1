"""Rows that are right when they are handed out, and kept, shared or overwritten the wrong way."""

from typing import Any

import torch

from impl.config import PoolerConfig
from impl.hostsplit import HostSplit
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingStates
from tests.zoo.joints import Bounds, Chunked, Cut, Last, Layer, Steps
from tests.zoo.register import bad, bad_layer


@bad("state-owns-its-rows")
class ViewKept(Chunked):
    """The chunk is kept as it was cut, a view of the engine's buffer."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        state.hidden_states_cache.append(chunk)


@bad("state-owns-its-rows")
class ContiguousTakenForACopy(Chunked):
    """`contiguous` copies only what is not contiguous yet, and rows are."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        state.hidden_states_cache.append(chunk.detach().contiguous())


@bad("state-is-bounded")
class StepPinnedByAView(HostSplit):
    """The step is copied once and its views are kept, each of which pins all of the copy."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.clone_finished = False

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        cursor = metadata.get_pooling_cursor()
        outputs: list[torch.Tensor | None] = []
        chunks = self.chunks(hidden_states.clone(), cursor)
        for chunk, state, finished in zip(chunks, metadata.pooling_states, cursor.get_finished_mask(), strict=True):
            state.hidden_states_cache.append(chunk)
            outputs.append(torch.cat(state.hidden_states_cache) if finished else None)
            if finished:
                state.clean()
        return outputs


@bad("state-is-bounded", "state-is-fresh-at-the-start")
class JoinedRowsKeptToo(Chunked):
    """The rows so far are kept joined, beside the chunks that they were joined from."""

    def keep(self, state: Any, chunk: torch.Tensor) -> None:
        super().keep(state, chunk)
        state.joined = torch.cat(state.hidden_states_cache)

    def finish(self, state: Any, chunk: torch.Tensor) -> torch.Tensor:
        vars(state).pop("joined", None)
        return super().finish(state, chunk)


@bad("state-is-bounded")
class KeptInFloat32(Chunked):
    """Rows are widened before they are kept, which takes twice their bytes."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        super().keep(state, chunk.float())

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        return super().finish(state, chunk).to(chunk.dtype)


@bad("state-is-bounded")
class RoomForTheLongestPrompt(Chunked):
    """Each request gets a block of the model's maximum length, of which most stays empty."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        block = chunk.new_empty(max(1024, chunk.shape[0]), chunk.shape[1])
        block[: chunk.shape[0]] = chunk
        state.hidden_states_cache.append(block[: chunk.shape[0]])


@bad("state-cleared")
class ResultKeptForDebugging(Chunked):
    """The last result is kept in the state, to look at in a debugger."""

    def finish(self, state: Any, chunk: torch.Tensor) -> torch.Tensor:
        state.last_result = super().finish(state, chunk)
        return state.last_result.clone()  # type: ignore[no-any-return]


@bad("state-cleared", "state-is-bounded")
class ResultKeptOnTheHost(Chunked):
    """The last result is kept for debugging as a NumPy array, which is no tensor, but memory all the same."""

    def finish(self, state: Any, chunk: torch.Tensor) -> torch.Tensor:
        rows = super().finish(state, chunk)
        state.last_result = rows.float().numpy().copy()
        return rows


@bad("state-cleared", serves=("LAST",))
class LastKeepsRows(Last):
    """LAST pooling keeps each chunk's last row like a token pooler, and nobody ever cleans it."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_last(hidden_states, metadata)
        for state, row in zip(metadata.pooling_states, outputs, strict=True):
            state.hidden_states_cache = [row.clone()]
        return outputs


@bad("inputs-unchanged")
class RowsWipedOnceKept(Chunked):
    """Rows that were kept are set to zero, to show that nobody reads them again; somebody does."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        super().keep(state, chunk)
        chunk.zero_()


@bad("inputs-unchanged", serves=("ALL", "LAST"))
class EndsMadeInPlace(Cut):
    """`add_` makes exclusive ends out of the last indices, in the caller's own tensor."""

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        ends = cursor.last_token_indices_gpu.add_(1)
        return list(zip(cursor.first_token_indices_gpu.tolist(), ends.tolist(), strict=True))


@bad("inputs-unchanged", serves=("STEP",))
class ColumnsPopped(HostSplit):
    """The params are emptied as they are read, so that nothing is applied twice."""

    def pool_step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_step(hidden_states, metadata)
        for rows, params in zip(outputs, metadata.pooling_params, strict=True):
            if rows is not None:
                params.returned_token_ids = None
        return outputs


@bad("inputs-unchanged", serves=("STEP",))
class TokenIdsMaskedInPlace(Steps):
    """Ids other than the tag are blanked where they are, in the engine's own array."""

    def tagged(self, ids: torch.Tensor, tag: int) -> torch.Tensor:
        ids[ids != tag] = tag + 1
        return ids == tag


@bad("inputs-unchanged")
class StatesPopped(HostSplit):
    """The list of states is taken apart as it is walked."""

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = super().pool_all(hidden_states, metadata)
        while metadata.pooling_states:
            metadata.pooling_states.pop()
        return outputs


@bad("outputs-own-their-rows")
class OutputIsAView(HostSplit):
    """Written before async scheduling, when the engine read outputs at once."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.clone_finished = False


@bad("outputs-own-their-rows", serves=("CLS", "LAST"))
class RowsHandedOutAsViews(HostSplit):
    """A list of rows instead of a stacked copy saves a copy, and the engine overwrites it."""

    def pool_last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        return [chunk[-1] for chunk in self._cut(hidden_states, metadata)]

    def pool_cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        self._refuse_partial_prefill(metadata, "CLS")
        return [chunk[0] for chunk in self._cut(hidden_states, metadata)]


@bad("values", "outputs-own-their-rows")
class OneOutputBuffer(Chunked):
    """Every result is written to one buffer, so a step's second overwrites its first."""

    buffer = torch.empty(0)

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        rows = super().finish(state, chunk)
        if len(self.buffer) < len(rows):
            self.buffer = torch.empty_like(rows)
        self.buffer[: len(rows)] = rows
        return self.buffer[: len(rows)]


@bad_layer("outputs-own-their-rows")
class ResultsInTheSameMemory(Layer):
    """A step's results are written where the last step's are, which the engine may still have to read."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.memory: dict[tuple[Any, ...], torch.Tensor] = {}

    def serve(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        outputs = enumerate(super().serve(hidden_states, metadata))
        return [rows if rows is None else self.written(place, rows) for place, rows in outputs]

    def written(self, place: int, rows: torch.Tensor) -> torch.Tensor:
        key = (place, rows.shape, rows.dtype)
        return self.memory.setdefault(key, torch.empty_like(rows)).copy_(rows)
