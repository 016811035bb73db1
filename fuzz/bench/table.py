"""Shows what `fuzz.bench.run` measured: a table for a person, Markdown for a page, one JSON object for a program."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fuzz.bench.run import Result

_WIDE = 120
"""Columns of a page that is not a terminal's."""


class Teller:
    """Tells the results as they come; with `as_json` on stderr, so that stdout is for the JSON line."""

    def __init__(self, where: str, rounds: int, as_json: bool) -> None:
        self.where = where
        self.rounds = rounds
        self.as_json = as_json
        self.results: list[Result] = []
        self.console = Console(stderr=as_json, highlight=False)
        if not self.console.is_terminal:
            self.console.width = _WIDE
        self.console.print(escape(f"{rounds} interleaved rounds, more if they scatter, on {where}"), soft_wrap=True)

    def workload(self, results: Sequence[Result]) -> None:
        """Show one workload."""
        self.results += results
        first = results[0]
        self.console.print(escape(f"\n{first.workload.name}: {first.workload.about}"), soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD)
        for title in titles(first.subject):
            table.add_column(escape(title), justify="left" if title in ("subject", "verdict") else "right")
        for result in results:
            table.add_row(*map(escape, cells(result)))
        self.console.print(table)

    def finished(self, note: str) -> None:
        """Show how it ended."""
        self.console.print("sees from: the smallest difference that would have been told from noise")
        self.console.print(escape(note), soft_wrap=True)
        if self.as_json:
            told = {"machine": self.where, "rounds": self.rounds, "results": [r.to_builtins() for r in self.results]}
            click.echo(json.dumps(told))


def titles(base: str) -> tuple[str, ...]:
    """What stands above the cells."""
    return ("subject", "median", f"beside {base}", "interval", "limit", "sees from", "verdict")


def cells(result: Result) -> list[str]:
    """A result in words, one a title; what is not known is left empty."""
    beside, times_limit = result.beside_base, result.times_limit
    at_limit = "" if times_limit is None else f"{times_limit:.2f} x {_us(result.limit_us)}"
    if beside is None:
        return [result.subject, _us(result.median_us), "", "", at_limit, "", ""]
    interval, sees = f"{beside.low:.3f} to {beside.high:.3f}", f"{100 * beside.smallest_effect:.1f} %"
    return [result.subject, _us(result.median_us), f"{beside.ratio:.3f}", interval, at_limit, sees, beside.verdict]


def _us(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us:,.1f} us" if time_us < 1000 else f"{time_us / 1000:,.2f} ms"


def markdown(results: Sequence[Result], where: str, rounds: int) -> str:
    """The results as a Markdown table, one line a workload, a column a subject."""
    names = list(dict.fromkeys(result.subject for result in results))
    lines = [
        f"{where}; medians of {rounds} interleaved rounds or more; in brackets the time beside {names[0]}.",
        "",
        f"| workload | what is timed | {' | '.join(names)} | limit |",
        f"|---|---|{'---:|' * (len(names) + 1)}",
    ]
    for _, group in groupby(results, lambda result: result.workload.name):
        by_name = {result.subject: result for result in group}
        one = next(iter(by_name.values()))
        cells = [_markdown_cell(by_name.get(name)) for name in names]
        lines.append(f"| {one.workload.name} | {one.workload.about} | {' | '.join(cells)} | {_us(one.limit_us)} |")
    return "\n".join(lines) + "\n"


def _markdown_cell(result: Result | None) -> str:
    if result is None:
        return "-"
    beside: Any = result.beside_base
    return _us(result.median_us) + ("" if beside is None else f" ({beside.ratio:.2f})")
