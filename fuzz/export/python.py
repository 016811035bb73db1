"""Python expressions for the data of a scenario: tensors, slices of requests' rows, what is due."""

import keyword
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from fuzz.export.trace import TracedCall
from fuzz.world import World
from oracle.approx import Approx
from oracle.rows import MODULUS, column_factors
from oracle.scenario import Request, Scenario

MAX_LITERAL: Final = 512
"""Numbers of a tensor that are written out; larger ones are computed by the same formula."""
RESERVED: Final = frozenset(("torch", "np", "pool", "rows", "metadata", "hidden_states", "outputs", "counts", "head"))


def variables(scenario: Scenario) -> dict[str, str]:
    """A variable for each request: its name where that is a plain one."""
    plain = [request.name for request in scenario.requests]
    usable = all(
        name.isidentifier()
        and name.isascii()
        and len(name) <= 8
        and not keyword.iskeyword(name)
        and name not in RESERVED
        for name in plain
    )
    return {name: name if usable else f"r{place}" for place, name in enumerate(plain)}


def tensor(values: torch.Tensor, dtype: torch.dtype) -> str:
    """A tensor written out."""
    return f"torch.tensor({literal(values.double().tolist())}, dtype={dtype})"


def literal(values: Any, indent: int = 4) -> str:
    """Nested lists of numbers as Python; a long list of rows takes a line a row."""
    if isinstance(values, list):
        parts = [literal(value, indent + 4) for value in values]
        line = f"[{', '.join(parts)}]"
        if len(line) <= 80 or not parts or not isinstance(values[0], list):
            return line
        inner = " " * (indent + 4)
        return "[\n" + "".join(f"{inner}{part},\n" for part in parts) + " " * indent + "]"
    if values != values:
        return "torch.nan"
    if values in (float("inf"), float("-inf")):
        return "torch.inf" if values > 0 else "-torch.inf"
    return repr(values)


def is_large(scenario: Scenario) -> bool:
    """Whether the hidden states are too many to be written out."""
    return sum(request.prompt_len for request in scenario.requests) * scenario.options.hidden_size > MAX_LITERAL


def formula(scenario: Scenario) -> list[str]:
    """Lines of a function that computes a request's hidden states."""
    factor, high, by_request, shift = (
        values.tolist() for values in column_factors(scenario.options.hidden_size, scenario.options.seed)
    )
    lines = [
        "def prompt_rows(request, prompt_len):",
        '    """Hidden states (prompt_len, hidden_size) that differ from token to token and request to request."""',
        "    position = np.arange(prompt_len)[:, None]",
        f"    mixed = position * np.array({factor}) + request * np.array({by_request}) + np.array({shift})",
        f"    values = (mixed + position // {MODULUS} * np.array({high})) % {MODULUS} - {MODULUS // 2}",
    ]
    if scenario.options.content == "float":
        lines += [
            f"    noise = np.random.default_rng({scenario.options.seed}).standard_normal({MODULUS})",
            f"    values = values / 100.0 + noise[values + {MODULUS // 2}] + 0.25",
        ]
    return [*lines, f"    return torch.from_numpy(values).to(torch.{scenario.options.dtype})"]


def prompts(scenario: Scenario, world: World, names: dict[str, str]) -> Iterator[str]:
    """Assignments of each request's hidden states to its variable."""
    large = is_large(scenario)
    for place, request in enumerate(scenario.requests):
        name = names[request.name]
        if not large:
            rows = world.universe.of(request.name, 0, request.prompt_len)
            yield f"{name} = {tensor(rows, world.universe.dtype)}"
            continue
        yield f"{name} = prompt_rows({place}, {request.prompt_len})"
        for at, value in ((request.nan_at, "torch.nan"), (request.inf_at, "torch.inf"), (request.zero_at, "0")):
            if at is not None:
                yield f"{name}[{at}] = {value}"


def hidden_states(call: TracedCall, scenario: Scenario, names: dict[str, str]) -> str:
    """The rows of a call, as slices of the requests' variables."""
    parts: list[str] = []
    place = 0
    rows = call.rows
    while place < len(rows):
        stop = place + 1
        while stop < len(rows) and _follows(rows[stop - 1], rows[stop]):
            stop += 1
        first = rows[place]
        if first is None:
            parts.append(
                f"torch.full(({stop - place}, {scenario.options.hidden_size}), torch.nan, "
                f"dtype=torch.{scenario.options.dtype})"
            )
        else:
            parts.append(f"{names[first[0]]}[{first[1]}:{first[1] + stop - place}]")
        place = stop
    if not parts:
        return f"torch.empty((0, {scenario.options.hidden_size}), dtype=torch.{scenario.options.dtype})"
    # A copy in either case: the engine overwrites its buffer, not the prompts.
    return f"torch.cat([{', '.join(parts)}])" if len(parts) > 1 else f"{parts[0]}.clone()"


def _follows(before: tuple[str, int] | None, row: tuple[str, int] | None) -> bool:
    if before is None or row is None:
        return before is row
    return before[0] == row[0] and before[1] + 1 == row[1]


def params(request: Request) -> str:
    """The request's pooling params."""
    fields = [f'task="{request.task}"', f"use_activation={request.use_activation is not False}"]
    set_ones = [field for field in ("dimensions", "step_tag_id") if getattr(request, field) is not None]
    fields += [f"{field}={getattr(request, field)}" for field in set_ones]
    if request.returned_token_ids is not None:
        fields.append(f"returned_token_ids={list(request.returned_token_ids)}")
    if request.chunk_size is not None:
        fields.append(f"late_chunking_params=SimpleNamespace(chunk_size={request.chunk_size})")
    return f"PoolingParams({', '.join(fields)})"


def check(output: str, request: Request, scenario: Scenario, world: World, name: str) -> list[str]:
    """Statements that hold if `output` is what is due to a finished request."""
    due = world.expected(request.name)
    if isinstance(due, Approx):
        if not due.value.size:
            return [f"assert {output}.shape == {due.shape}"]
        value, error = literal(due.value.tolist()), literal(due.error.tolist())
        return [f"assert {output}.dtype == {due.dtype}", f"assert is_within({output}, {value}, {error})"]
    nonfinite = request.nan_at is not None or request.inf_at is not None
    equal_nan = ", equal_nan=True" if nonfinite else ""
    return [f"torch.testing.assert_close({output}, {_due(request, scenario, name)}, rtol=0, atol=0{equal_nan})"]


def _due(request: Request, scenario: Scenario, name: str) -> str:
    match scenario.pooling_type(request):
        case "STEP":
            columns = request.returned_token_ids
            rows = name if columns is None else f"{name}[:, {list(columns)}]"
            if request.step_tag_id is not None:
                rows += f"[{[at for at, token in enumerate(request.prompt_token_ids) if token == request.step_tag_id]}]"
            return rows
        case "CLS":
            return f"{name}[0]"
        case "LAST":
            return f"{name}[-1]"
        case _:
            return name


def token_ids(call: TracedCall, requests: dict[str, Request], padding: int) -> str:
    """Padded prompt token ids of the call's requests."""
    width = max((requests[name].prompt_len for name in call.names), default=0)
    return literal([_padded(requests[name].prompt_token_ids, width, padding) for name in call.names], indent=8)


def _padded(ids: Sequence[int], width: int, padding: int) -> list[int]:
    return [*ids, *[padding] * (width - len(ids))]
