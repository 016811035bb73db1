"""Something is kept outside the pooling states, and a later result depends on it."""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from impl.config import PoolerConfig
from impl.methods import scheduled_counts
from oracle.metadata import PoolingCursor, PoolingMetadata, PoolingParams, PoolingStates
from tests.zoo.joints import Bounds, Chunked, Cut, Last, Means, Steps
from tests.zoo.register import bad


@bad("values", serves=("LAST",))
class CapturedByShape(Last):
    """A graph is captured per shape and replayed, without copying in what it should run on."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.captured: dict[tuple[int, ...], torch.Tensor] = {}

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        shape = (*hidden_states.shape, len(scheduled_counts(cursor)))
        return self.captured.setdefault(shape, super().rows_at(hidden_states, cursor)).clone()


@bad("row-count", "values")
class BoundsByBatchSize(Cut):
    """Bounds are worked out once for each batch size, as if the lengths were always the same."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.known: dict[int, Bounds] = {}

    def bounds(self, cursor: PoolingCursor) -> Bounds:
        return self.known.setdefault(len(cursor.prompt_lens_cpu), super().bounds(cursor))


@bad("values", serves=("LAST",))
class FirstCallTakenForTheProfile(Last):
    """The first call is the engine's profiling run, whose numbers nobody reads, or so it was."""

    profiled = False

    def rows_at(self, hidden_states: torch.Tensor, cursor: PoolingCursor) -> Any:
        rows = super().rows_at(hidden_states, cursor)
        if self.profiled:
            return rows
        self.profiled = True
        return torch.zeros_like(rows)


@bad("values", serves=("MEAN",))
class DivisorOfTheLongestEver(Means):
    """The longest prompt is remembered to save a reduction, and never forgotten."""

    longest = 0

    def means(self, hidden_states: torch.Tensor, counts: list[int]) -> Any:
        lengths = dict.fromkeys(counts)
        self.longest = max(self.longest, *lengths) if lengths else self.longest
        divisor = self.longest if len(lengths) == 1 else None
        return [self.total(chunk) / (divisor or len(chunk)) for chunk in hidden_states.split_with_sizes(counts)]


@bad("values", serves=("STEP",))
class ResultByPromptText(Steps):
    """Results are cached by prompt token ids, though a prompt's rows may differ."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def select(self, rows: torch.Tensor, ids: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        whole = self.known.setdefault(tuple(ids.tolist()), rows.clone())
        return super().select(whole, ids, params)


@bad("none-iff-unfinished")
class OwnCountOfTokens(Chunked):
    """The pooler counts each request's tokens itself, and does not hear of a restart."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.computed: WeakKeyDictionary[PoolingStates, int] = WeakKeyDictionary()

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        counts = scheduled_counts(metadata.get_pooling_cursor())
        for state, count in zip(metadata.pooling_states, counts, strict=True):
            self.computed[state] = self.computed.get(state, 0) + count
        lengths = zip(metadata.pooling_states, metadata.prompt_lens.tolist(), strict=True)
        self.mask = [self.computed[state] >= length for state, length in lengths]
        return super().pool_all(hidden_states, metadata)

    def finished(self, cursor: PoolingCursor) -> list[bool]:
        return self.mask


@bad("state-determines-behaviour")
class KeptBesideTheState(Chunked):
    """Rows are kept in the pooler, by state, where an engine can neither count nor clean them."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.kept: WeakKeyDictionary[PoolingStates, PoolingStates] = WeakKeyDictionary()

    def pool_all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Any:
        cursor = metadata.get_pooling_cursor()
        starts = (cursor.seq_lens_cpu == cursor.num_scheduled_tokens_cpu).tolist()
        for state, starting in zip(metadata.pooling_states, starts, strict=True):
            if starting:
                self.kept[state] = PoolingStates()
        kept = [self.kept.setdefault(state, PoolingStates()) for state in metadata.pooling_states]
        return super().pool_all(hidden_states, replace(metadata, pooling_states=kept))


@bad("state-determines-behaviour")
class JoinedOutsideTheState(Chunked):
    """Rows so far are joined once and remembered beside the state, without the chunks that follow."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.joined: WeakKeyDictionary[PoolingStates, torch.Tensor] = WeakKeyDictionary()

    def keep(self, state: PoolingStates, chunk: torch.Tensor) -> None:
        super().keep(state, chunk)
        self.joined.setdefault(state, torch.cat(state.hidden_states_cache))

    def finish(self, state: PoolingStates, chunk: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.joined.get(state, torch.cat([chunk[:0], *state.hidden_states_cache])), chunk])
        state.clean()
        return rows
