"""Right poolers that have next to nothing in common with ours: no contract may speak up on any of them.

Each cuts, keeps, joins and averages in its own way; what they share is what every pooler owes its caller. To
search for a false alarm:

    poolproof fuzz --subject tests.flock:padded --subject tests.flock:jagged --subject tests.flock:by_index \
        --subject tests.flock:clones_everything --subject tests.flock:sorts_inside \
        --subject tests.flock:two_passes --subject tests.flock:in_float64 --max-scenarios 150000
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from impl.config import PoolerConfig, PoolFn
from impl.methods import scheduled_counts
from oracle.metadata import PoolingMetadata, PoolingStates

Rows = list[torch.Tensor]


class Bird(ABC):
    """One way to pool."""

    def __init__(self, config: PoolerConfig) -> None:
        self.config = config

    @abstractmethod
    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        """Rows (count, hidden_size) of each request, owned by the caller."""

    def keep(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> None:
        """Keep a chunk for a later step."""
        state.hidden_states_cache.append(chunk)

    def join(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> torch.Tensor:
        """What was kept, with the last chunk."""
        return torch.cat([*state.hidden_states_cache, chunk])

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean (hidden_size,) of rows, in float32."""
        return rows.float().sum(0) / rows.shape[0]

    def all(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """ALL pooling."""
        cursor = metadata.get_pooling_cursor()
        chunks = self._chunks(hidden_states, metadata)
        if not self.config.enable_chunked_prefill:
            return list(chunks)
        outputs: list[torch.Tensor | None] = []
        lengths = cursor.prompt_lens_cpu.tolist()
        for chunk, state, length, done in zip(
            chunks, metadata.pooling_states, lengths, cursor.get_finished_mask(), strict=True
        ):
            if done:
                outputs.append(self.join(state, chunk, length))
                state.clean()
            else:
                self.keep(state, chunk, length)
                outputs.append(None)
        return outputs

    def step(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """STEP pooling."""
        outputs = self.all(hidden_states, metadata)
        for place, (rows, params) in enumerate(zip(outputs, metadata.pooling_params, strict=True)):
            if rows is None:
                continue
            if params.step_tag_id is not None:
                ids = metadata.get_prompt_token_ids_cpu()[place].tolist()
                tagged = [rows[at] for at, token in enumerate(ids) if token == params.step_tag_id]
                rows = torch.stack(tagged) if tagged else rows[:0].clone()
            if params.returned_token_ids:
                rows = torch.stack([rows[:, column] for column in params.returned_token_ids], dim=1)
            outputs[place] = rows
        return outputs

    def cls(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        """CLS pooling."""
        return [rows[0] for rows in self._whole(hidden_states, metadata)]

    def last(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        """LAST pooling."""
        return [rows[-1] for rows in self._chunks(hidden_states, metadata)]

    def means(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        """MEAN pooling."""
        return [self.mean(rows) for rows in self._whole(hidden_states, metadata)]

    def _whole(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        if metadata.get_pooling_cursor().is_partial_prefill():
            raise ValueError("part of a prompt")
        return self._chunks(hidden_states, metadata)

    def _chunks(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        counts = scheduled_counts(metadata.get_pooling_cursor())
        if sum(counts) != len(hidden_states):
            raise ValueError(f"{len(hidden_states)} rows, but {sum(counts)} are scheduled")
        return self.cut(hidden_states, counts)


class Padded(Bird):
    """Spreads the batch over a padded matrix and selects by mask; keeps a prompt's rows in one buffer."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        lengths = torch.tensor(counts, dtype=torch.int64)
        longest = max(counts, default=0)
        mask = torch.arange(longest) < lengths[:, None]
        padded = hidden_states.new_full((len(counts), longest, hidden_states.shape[1]), torch.nan)
        padded[mask] = hidden_states
        return [padded[place][mask[place]] for place in range(len(counts))]

    def keep(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> None:
        if not state.hidden_states_cache:
            state.hidden_states_cache.append(chunk.new_empty(prompt_len, chunk.shape[1]))
            state.filled = 0  # type: ignore[attr-defined]
        self._fill(state, chunk)

    def join(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> torch.Tensor:
        if not state.hidden_states_cache:
            return chunk
        self._fill(state, chunk)
        return state.hidden_states_cache[0][-state.filled :]  # type: ignore[attr-defined]

    @staticmethod
    def _fill(state: Any, chunk: torch.Tensor) -> None:
        # From the back, for a prefix that was found in the cache is never computed.
        buffer = state.hidden_states_cache[0]
        kept = buffer[len(buffer) - state.filled :].clone()
        state.filled += len(chunk)
        buffer[len(buffer) - state.filled :] = torch.cat([kept, chunk])

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([rows.float(), rows.new_full((3, rows.shape[1]), torch.nan).float()])
        mask = torch.arange(len(padded)) < len(rows)
        return torch.where(mask[:, None], padded, torch.zeros(())).sum(0) / mask.sum()


class Jagged(Bird):
    """By way of torch's jagged nested tensors."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        if not counts:
            return []
        offsets = torch.tensor([0, *counts]).cumsum(0)
        return [rows.clone() for rows in torch.nested.nested_tensor_from_jagged(hidden_states, offsets).unbind()]

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([len(rows)])
        return torch.segment_reduce(rows.float(), "mean", lengths=lengths, axis=0)[0]


class ByIndex(Bird):
    """Picks each row by its index."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        first, parts = 0, []
        for count in counts:
            parts.append(hidden_states.index_select(0, torch.arange(first, first + count)))
            first += count
        return parts

    def keep(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> None:
        state.hidden_states_cache.extend(row.clone() for row in chunk)

    def join(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> torch.Tensor:
        return torch.stack([*state.hidden_states_cache, *chunk])

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(rows.shape[1])
        for row in rows.float():
            total = total + row
        return total / len(rows)


class ClonesEverything(Bird):
    """Trusts nobody's memory."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        return [chunk.clone() for chunk in hidden_states.clone().split_with_sizes(list(counts))]

    def join(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> torch.Tensor:
        return super().join(state, chunk.clone(), prompt_len).clone()


class SortsInside(Bird):
    """Works on the longest first, and puts them back."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        starts = [sum(counts[:place]) for place in range(len(counts))]
        order = sorted(range(len(counts)), key=lambda place: -counts[place])
        parts = {place: hidden_states[starts[place] : starts[place] + counts[place]].clone() for place in order}
        return [parts[place] for place in range(len(counts))]

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.float().mean(0)


class TwoPasses(Bird):
    """Keeps every chunk first, finished or not, and joins what is finished in a second pass."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        given = (row.clone() for row in hidden_states.unbind(0))
        return [torch.stack([next(given) for _ in range(count)]) for count in counts]

    def join(self, state: PoolingStates, chunk: torch.Tensor, prompt_len: int) -> torch.Tensor:
        self.keep(state, chunk, prompt_len)
        return torch.vstack(state.hidden_states_cache)


class InFloat64(Bird):
    """Goes by way of float64, which holds every narrower number."""

    def cut(self, hidden_states: torch.Tensor, counts: Sequence[int]) -> Rows:
        wide = hidden_states.double()
        return [chunk.to(hidden_states.dtype) for chunk in torch.split(wide, list(counts))]

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.double().mean(0).float()


def _factory(bird: Callable[[PoolerConfig], Bird]) -> Callable[[PoolerConfig], PoolFn]:
    def factory(config: PoolerConfig) -> PoolFn:
        made = bird(config)
        methods: dict[str, PoolFn] = {
            "ALL": made.all,
            "STEP": made.step,
            "CLS": made.cls,
            "LAST": made.last,
            "MEAN": made.means,
        }
        return methods[config.pooling_type]

    factory.supports = {"ALL", "STEP", "CLS", "LAST", "MEAN"}  # type: ignore[attr-defined]
    return factory


padded = _factory(Padded)
jagged = _factory(Jagged)
by_index = _factory(ByIndex)
clones_everything = _factory(ClonesEverything)
sorts_inside = _factory(SortsInside)
two_passes = _factory(TwoPasses)
in_float64 = _factory(InFloat64)

FLOCK: Final = ("padded", "jagged", "by_index", "clones_everything", "sorts_inside", "two_passes", "in_float64")
