"""What peers are asked: batches of whole requests, drawn by the project's own generator, and extremes by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Final, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from fuzz.campaign import scenarios
from fuzz.mix import for_subjects
from impl.builtin import BUILTIN
from oracle.reference import pool
from oracle.rows import Universe, same_numbers
from oracle.scenario import POOLING_TYPES, Options, PoolingType, Request, Scenario

CPU: Final = torch.device("cpu")
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
DRAWN: Final = 600
SEED: Final = 20
MAX_PADDED_ELEMENTS: Final = 1 << 21
"""A crowd beside a huge prompt is left out where a peer would pad everyone to its length."""
LENGTHS: Final = ((1,), (1, 1, 1), (4096,), (1, 4096, 2), (7, 128, 33, 512, 1))


@dataclass(frozen=True)
class Batch:
    """Requests and all their rows, in the layouts that peers take."""

    requests: Sequence[Request]
    rows: Sequence[torch.Tensor]
    """One (prompt_len, hidden_size) a request."""
    options: Options = field(default_factory=Options)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows[0].dtype

    @property
    def packed(self) -> torch.Tensor:
        """(all tokens, hidden_size)."""
        return torch.cat(list(self.rows))

    @property
    def lengths(self) -> torch.Tensor:
        """(n,) int64."""
        return torch.tensor([len(rows) for rows in self.rows])

    @property
    def offsets(self) -> torch.Tensor:
        """(n + 1,) int64, where each request's rows begin in `packed`."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    def padded(self, side: Literal["left", "right"] = "right", fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, longest, hidden_size), and a mask (n, longest) of what is no padding."""
        rows = pad_sequence(list(self.rows), batch_first=True, padding_value=fill, padding_side=side)
        there = [torch.ones(len(own), dtype=torch.int64) for own in self.rows]
        return rows, pad_sequence(there, batch_first=True, padding_side=side)

    @property
    def finite(self) -> bool:
        """Whether no nan and no inf is planted."""
        return bool(self.packed.isfinite().all())

    def due(self, pooling_type: PoolingType) -> list[torch.Tensor]:
        """What the reference makes of each request, for the pooling types that move rows."""
        made = [pool(pooling_type, rows, request) for rows, request in zip(self.rows, self.requests, strict=True)]
        assert all(isinstance(rows, torch.Tensor) for rows in made)
        return made  # type: ignore[return-value]


@cache
def drawn(count: int = DRAWN, *pooling_types: PoolingType) -> Sequence[Batch]:
    """Batches of the generator's requests: every option, dtype, length and planted value that a campaign has."""
    mix = replace(for_subjects(BUILTIN.values()), pooling_types=pooling_types or POOLING_TYPES)
    return [_batch(scenario) for scenario in islice(filter(_fits, scenarios(mix, SEED)), count)]


def extremes() -> Iterator[Batch]:
    """One token, 4,096 tokens, rows of zeros, and values near the end of each dtype's range, 64 wide."""
    generator = torch.Generator().manual_seed(SEED)
    for dtype in DTYPES:
        large = 60_000.0 if dtype is torch.float16 else 1e30
        for lengths in LENGTHS:
            for scale, shift in ((1.0, 0.0), (1.0, 100.0), (0.0, 0.0), (large / 8, 0.0)):
                yield Batch(
                    [request(length, name=str(place)) for place, length in enumerate(lengths)],
                    [
                        (torch.randn(length, 64, generator=generator).clamp(-8, 8) * scale + shift).to(dtype)
                        for length in lengths
                    ],
                )


def batches(count: int = DRAWN) -> Iterator[Batch]:
    """All of them."""
    yield from drawn(count)
    yield from extremes()


def request(length: int, task: Literal["embed", "classify"] = "embed", name: str = "a") -> Request:
    """A request without particular params."""
    return Request(name, task, (1,) * length)


def assert_same(actual: Sequence[torch.Tensor] | torch.Tensor, due: Sequence[torch.Tensor]) -> None:
    """Each request's rows are these, bit for bit."""
    assert len(actual) == len(due)
    for got, right in zip(actual, due, strict=True):
        assert got.shape == right.shape
        assert got.dtype is right.dtype
        assert same_numbers(got.contiguous(), right.contiguous())


def _batch(scenario: Scenario) -> Batch:
    universe = Universe(scenario, CPU)
    rows = [universe.of(request.name, 0, request.prompt_len) for request in scenario.requests]
    return Batch(scenario.requests, rows, scenario.options)


def _fits(scenario: Scenario) -> bool:
    longest = max((request.prompt_len for request in scenario.requests), default=0)
    return 0 < len(scenario.requests) * longest * scenario.options.hidden_size <= MAX_PADDED_ELEMENTS
