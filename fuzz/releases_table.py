"""Shows what `fuzz.releases` found: tables for a person, one JSON object for a program."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fuzz.campaign import Event, Listener, Progressed
from fuzz.explain import headline
from fuzz.releases import Status, Survey

_SIGNS: Final[dict[Status, str]] = {"holds": "", "violates": "x", "not applicable": "-"}
_WIDE: Final = 160
"""Columns of a page that is not a terminal's."""


@contextmanager
def progress(releases: int) -> Iterator[Listener]:
    """A line on a terminal that says how far a survey is, and what tells it so."""
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:

        def tell(event: Event) -> None:
            if isinstance(event, Progressed):
                scenarios, findings = f"{event.scenarios:,} scenarios", f"{event.findings:,} findings"
                status.update(f"checking {releases} releases, twice: {scenarios}, {findings}; {escape(event.now)}")

        yield tell


def show(survey: Survey, as_json: bool) -> None:
    """Print the tables, or with `as_json` one JSON object on stdout and the tables on stderr."""
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    failures = Table(box=box.SIMPLE_HEAD)
    for title in ("releases", "contract", "kind", "what it is"):
        failures.add_column(title)
    for row in survey.rows():
        kind = row.known.kind if row.known else "new"
        what = f"{row.known.title} {row.known.url}".strip() if row.known else headline(row.finding)
        failures.add_row(row.range, row.finding.contract, kind, escape(what))
    console.print(failures)
    columns = survey.columns()
    verdicts = Table(box=box.SIMPLE_HEAD)
    verdicts.add_column("contract", no_wrap=True)
    for releases, _ in columns:
        verdicts.add_column(releases.replace(" to ", "\nto "), justify="center")
    for place, contract in enumerate(survey.contracts):
        verdicts.add_row(contract.name, *(_SIGNS[column[place]] for _, column in columns))
    console.print(verdicts)
    console.print("x: violated, blank: holds, -: the release has nothing that the contract is about")
    for error in survey.errors:
        Console(stderr=True, highlight=False).print(escape(error), style="red", soft_wrap=True)
    if as_json:
        click.echo(json.dumps(survey.to_builtins()))
