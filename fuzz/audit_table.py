"""Shows what `fuzz.audit` measured: a table for a person, one JSON object for a program."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from fuzz.audit import FIGURES, Row
from oracle.contracts import LADDER

_TITLES: Final = {
    "reads": "reads", "uploads": "uploads", "waits": "waits", "kernels": "kernels", "moved_bytes": "moved",
    "device_bytes": "touched",
}  # fmt: skip
_WIDE: Final = 120
"""Columns of a page that is not a terminal's."""
_GROWS: Final = 0.01


def failed(rows: Sequence[Row]) -> bool:
    """Whether some subject was wrong, so that its figures mean nothing."""
    return any(row.failure for row in rows)


def show(rows: Sequence[Row], device: str, as_json: bool) -> None:
    """Print the table, or with `as_json` one JSON object on stdout and the table on stderr."""
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(f"a step of {LADDER[-1]} requests on {device}, and +: what each request adds")
    console.print(_table(rows))
    console.print("reads go from device to host, uploads the other way; at a wait the host stands still")
    console.print("moved: bytes between host and device; touched: bytes that kernels read and write\n")
    for line in _places(rows):
        console.print(escape(line), soft_wrap=True)
    for row in rows:
        if row.failure:
            console.print(escape(f"{row.subject}, {row.load}: {row.failure}"), style="red", soft_wrap=True)
    if as_json:
        click.echo(json.dumps({"device": device, "rows": [row.to_builtins() for row in rows]}))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("step", "subject"):
        table.add_column(title, no_wrap=True)
    for figure in FIGURES:
        table.add_column(_TITLES[figure], justify="right")
    for load in dict.fromkeys(row.load for row in rows):
        same = [row for row in rows if row.load == load]
        for row in same:
            cells = ["wrong" for _ in FIGURES] if row.failure else [_cell(row, figure) for figure in FIGURES]
            table.add_row(load, row.subject, *cells)
    return table


def _cell(row: Row, figure: str) -> str:
    now, growth = row.figures[figure][-1], row.per_request(figure)
    told, more = (_size(now), _size(round(growth))) if "bytes" in figure else (f"{now:,}", f"{growth:.2g}")
    return f"{told} +{more}" if growth > _GROWS else told


def _size(num_bytes: int) -> str:
    return decimal(num_bytes).replace(" bytes", " B").replace(" byte", " B")


def _places(rows: Sequence[Row]) -> list[str]:
    """Each place at which host and device met, with how often in which step."""
    seen: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for place, count in row.places.items():
            seen.setdefault((row.subject, place), []).append(f"{count} in {row.load}")
    here = f"{Path.cwd()}/"
    return [f"{subject}: {place.replace(here, '')}: {'; '.join(told)}" for (subject, place), told in seen.items()]
