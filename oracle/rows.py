"""Rows that say where they come from, and the weights of the heads.

Row content is a function of (request, position, column, seed), built of integers from -125 to 125:
exact in fp32, fp16 and bf16, with fp32 sums that are exact up to 134,000 rows. So moves and sums
compare bit for bit, and a wrong row can be named by looking it up.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from oracle.device.audit import unaudited
from oracle.device.memory import data
from oracle.scenario import Scenario

MODULUS: Final = 251
"""A prime, so that in each column 251 neighbouring positions of a request all differ."""
STALE: Final = 252.0
"""Fills the step's buffer once the step is over; exact in every dtype and in no row."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


@lru_cache(maxsize=512)
def column_factors(hidden_size: int, seed: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Per column: factor of the position, of the position's high part, of the request, and a shift.

    The request's factor is the position's times 100 + column, so no two columns are proportional and
    small steps in request and position don't cancel even where there is one column.
    """
    columns = np.arange(hidden_size, dtype=np.int64)
    mixed = (columns * 2654435761 + seed * 40503 + 12345) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    factor = 1 + mixed % (MODULUS - 1)
    return factor, 1 + (mixed >> 11) % (MODULUS - 1), factor * (100 + columns) % MODULUS, mixed >> 19


def exact_rows(request: Ints, position: Ints, hidden_size: int, seed: int) -> Ints:
    """Rows (n, hidden_size) of integers for n pairs of request index and position."""
    factor, high, by_request, shift = column_factors(hidden_size, seed)
    mixed = position[:, None] * factor + request[:, None] * by_request + shift
    if position.max(initial=0) >= MODULUS:
        mixed += (position // MODULUS)[:, None] * high
    return mixed % MODULUS - MODULUS // 2


class Universe:
    """Every hidden state the scenario's requests have, on one device.

    `rows` is (all prompt tokens, hidden_size); request i's rows start at `starts[i]`.
    """

    def __init__(self, scenario: Scenario, device: torch.device) -> None:
        options = scenario.options
        self.names = [request.name for request in scenario.requests]
        lengths = np.array([request.prompt_len for request in scenario.requests], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        self.starts = dict(zip(self.names, starts.tolist(), strict=True))
        self.lengths = dict(zip(self.names, lengths.tolist(), strict=True))
        request = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        values: Any = exact_rows(request, position, options.hidden_size, options.seed)
        if options.content == "float":
            values = _realistic(values, options.seed)
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self.rows = torch.from_numpy(values).to(device=device, dtype=self.dtype)
        for owner in scenario.requests:
            for at, value in ((owner.nan_at, float("nan")), (owner.inf_at, float("inf")), (owner.zero_at, 0.0)):
                if at is not None:
                    self.rows[self.starts[owner.name] + at] = value

    def of(self, name: str, start: int, count: int) -> torch.Tensor:
        """Rows (count, hidden_size) of one request, from position `start` on."""
        first = self.starts[name] + start
        return self.rows[first : first + count]

    def origin(self, row: torch.Tensor) -> str:
        """Say in words which row this is: whose, and which token's."""
        row = data(row)
        if bool((row == STALE).all()):
            return "the step's buffer after it was overwritten"
        found = self.sources(row)
        if not found:
            return "padding" if bool(row.isnan().all()) else f"no request's row {_show(row)}"
        return " or ".join(f"request {name}, token {position}" for name, position in found[:3])

    def sources(self, row: torch.Tensor) -> list[tuple[str, int]]:
        """Request and position of each hidden state that is this row, bit for bit."""
        return self._index().get(_key(row), [])

    def _index(self) -> dict[bytes, list[tuple[str, int]]]:
        if not hasattr(self, "_found"):
            self._found: dict[bytes, list[tuple[str, int]]] = {}
            for name in self.names:
                for position, row in enumerate(data(self.of(name, 0, self.lengths[name]))):
                    self._found.setdefault(_key(row), []).append((name, position))
        return self._found


def _realistic(values: Ints, seed: int) -> Any:
    """Replace each integer by a float near it over 100, shifted off zero: content of real scale."""
    noise = np.random.default_rng(seed).standard_normal(MODULUS)
    return values / 100.0 + noise[values + MODULUS // 2] + 0.25


def _key(row: torch.Tensor) -> bytes:
    row = row.cpu().contiguous()
    return bits(row).masked_fill(row.isnan(), -1).numpy().tobytes()


def _show(row: torch.Tensor) -> str:
    head = ", ".join(f"{value:g}" for value in row[:4].tolist())
    return f"[{head}{', ...' if len(row) > 4 else ''}]"


_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, so that a nan equals itself and 0.0 differs from -0.0."""
    return data(tensor).view(_BITS[tensor.element_size()])


def same_numbers(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same numbers.

    A nan is a nan: on the way through another dtype the bits of its payload change, and no one can tell.
    """
    left, right = data(left), data(right)
    return torch.equal(left, right) or bool(((left == right) | (left.isnan() & right.isnan())).all())


@lru_cache(maxsize=64)
def weight(in_features: int, out_features: int, seed: int, scale: float = 1 / 32) -> torch.Tensor:
    """Head weights (out_features, in_features), float32: three entries of `scale` a row, one negative.

    Sparse and powers of two, so that products are exact in every dtype, sums stay far from overflow,
    and the result still depends on which row went in. Features at which another column would do no
    harm (fewer than three inputs) share columns.
    """
    matrix = torch.zeros(out_features, in_features)
    for out in range(out_features):
        for term, sign in enumerate((1.0, 1.0, -1.0)):
            matrix[out, (out * 7 + term * (5 + seed % 11) + seed) % in_features] += sign * scale
    return matrix


@lru_cache(maxsize=256)
def _weight_on(device: torch.device, in_features: int, out_features: int, seed: int, scale: float) -> torch.Tensor:
    """The weights on a device, as a served model has them before the first request."""
    with unaudited():
        return weight(in_features, out_features, seed, scale).to(device, non_blocking=True)


class Linear:
    """A learned layer: callable on rows (..., in_features); bias-free, with weights of one size, a power of two.

    It multiplies in float32 whatever the dtype, for torch's bfloat16 kernels on CPUs mix neighbouring
    rows where one holds inf and the width is odd (seen with torch 2.13): a fault of no pooler's.
    """

    def __init__(self, out_features: int, seed: int, scale: float = 1 / 32) -> None:
        self.out_features = out_features
        self.seed = seed
        self.scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (..., in_features) to (..., out_features) of the same dtype."""
        matrix = _weight_on(rows.device, rows.shape[-1], self.out_features, self.seed, self.scale)
        return torch.nn.functional.linear(rows.float(), matrix).to(rows.dtype)

    def matrix(self, in_features: int) -> torch.Tensor:
        """The weights (out_features, in_features) in float32 on the host."""
        return weight(in_features, self.out_features, self.seed, self.scale)
