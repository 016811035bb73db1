"""The terminal and the JSON line: readers of the events, and the only ones that print."""

import json
from typing import Any

import click
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from fuzz.campaign import Budget, Event, Found, Progressed, Report, Started
from fuzz.drawing import LEGEND, draw
from fuzz.explain import counted, explain, facts, headline
from fuzz.findings import Finding
from fuzz.reports.as_json import to_builtins
from oracle.contracts import all_contracts

MAX_REQUESTS = 12
"""Requests of a finding that are described one by one."""
PLAIN_EVERY_S = 30.0
"""How often a line says where a run stands, where there is no terminal to show it live."""


class Terminal:
    """Tells a person how a run goes; with `as_json` on stderr, so that stdout is for the JSON line."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=True, emoji=False)
        self._live: Live | None = None
        self._legend_is_due = True
        self._budget = Budget()
        self._next_line_s = PLAIN_EVERY_S
        self.replay_options = ""
        """What a replay must be told besides the file."""

    def on_event(self, event: Event) -> None:
        """Show an event."""
        match event:
            case Started():
                self._started(event)
            case Progressed():
                self._progressed(event)
            case Found():
                self._found(event.finding)

    def finished(self, report: Report) -> None:
        """Show how it ended."""
        self._stop_live()
        say = self.console.print
        if report.skipped:
            say(f"skipped: {report.skipped}", markup=False)
            if self.as_json:
                click.echo(json.dumps(to_builtins(report)))
            return
        if report.interrupted:
            say("interrupted; this is what was found so far")
        for note in report.notes:
            say(escape(note))
        if report.mix and report.seed is not None:
            say(_mix(report))
        rate = report.scenarios / report.elapsed_s if report.elapsed_s else 0.0
        ended = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(report.verdicts.items()))
        say(
            f"{report.scenarios:,} scenarios in {report.elapsed_s:.1f} s ({rate:,.0f}/s), "
            f"{report.comparisons:,} results compared; runs: {ended or 'none'}"
        )
        for doubt in report.doubts:
            say(Text(f"inconclusive: {doubt}", style="yellow"))
        if report.error:
            Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(Text(report.error, style="red"))
        if len(report.findings) > 1:
            say("findings, each cause once, the smallest first:")
            for finding in report.findings:
                known = f" (known as {finding.known})" if finding.known else ""
                say(escape(f"  {finding.contract}, {counted(finding.count, 'time')}{known}: {headline(finding)}"))
        style = {"holds": "bold green", "violates": "bold red"}.get(report.verdict, "bold yellow")
        known_count = len(report.findings) - len(report.unknown)
        told = (
            f"{report.verdict}: {counted(len(report.findings), 'finding')}"
            f"{f', of which known: {known_count},' if known_count else ''} on {', '.join(report.subjects)}"
        )
        say(Text(told, style=style))
        if self.as_json:
            click.echo(json.dumps(to_builtins(report)))

    def could_not_run(self, why: str) -> None:
        """Say why nothing was judged."""
        self._stop_live()
        Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(
            Text(f"could not run: {why}", style="red")
        )
        if self.as_json:
            empty: dict[str, Any] = to_builtins(Report([], None))
            click.echo(json.dumps({**empty, "verdict": "error", "error": why}))

    def _started(self, event: Started) -> None:
        self._budget, self._next_line_s = event.budget, PLAIN_EVERY_S
        limits = []
        if event.budget.max_time_s is not None:
            limits.append(f"{event.budget.max_time_s:g} s")
        if event.budget.max_scenarios is not None:
            limits.append(f"{event.budget.max_scenarios:,} scenarios")
        self.console.print(
            escape(
                f"poolproof {event.what} on {', '.join(event.subjects)}; device {event.device}"
                + (f"; seed {event.seed}" if event.seed is not None else "")
                + (f"; at most {' or '.join(limits)}" if limits else "")
            )
        )

    def _progressed(self, event: Progressed) -> None:
        if not self.console.is_terminal:
            if event.elapsed_s >= self._next_line_s:
                self._next_line_s = event.elapsed_s + PLAIN_EVERY_S
                self.console.print(standing(event, self._budget), markup=False)
            return
        if self._live is None:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(standing(event, self._budget)), refresh=True)

    def _found(self, finding: Finding) -> None:
        told = explain(finding)
        say = self.console.print
        say()
        say(Text(told.headline, style="bold red"))
        say(f"  {told.contract.name} is broken by {told.subject}", markup=False)
        say()
        for line in (*told.requests[:MAX_REQUESTS], f"options: {told.options}"):
            say(f"  {line}", markup=False)
        if len(told.requests) > MAX_REQUESTS:
            say(f"  and {counted(len(told.requests) - MAX_REQUESTS, 'more request')}")
        say()
        for drawn in draw(told, self.console.width - 2):
            say(Text("  ") + drawn if drawn else "")
        if self._legend_is_due:
            say(Text(f"  {LEGEND}", style="dim"))
            self._legend_is_due = False
        say()
        for name, text in facts(told):
            self._fact(name, text + self.replay_options if name.startswith("replay") else text)

    def _fact(self, name: str, text: str) -> None:
        fact = Text.assemble((f"{name}: ", "bold"), text)
        if self.console.is_terminal and not name.startswith("replay"):
            self.console.print(Padding(fact, (0, 0, 0, 2)), soft_wrap=False)
        else:
            # On one line, so that it can be searched for, or copied into a shell.
            self.console.print(Text("  ") + fact)

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def standing(event: Progressed, budget: Budget) -> str:
    """Where a run stands, on one line: time, time left, rates, findings, and what of the mix hasn't come up yet."""
    rate = event.scenarios / event.elapsed_s if event.elapsed_s else 0.0
    left = []
    if budget.max_time_s is not None:
        left.append(budget.max_time_s - event.elapsed_s)
    if budget.max_scenarios is not None and rate:
        left.append((budget.max_scenarios - event.scenarios) / rate)
    parts = [
        f"{event.elapsed_s:5.1f} s" + (f", {max(min(left), 0):,.0f} s left" if left else ""),
        f"{event.scenarios:,} scenarios",
        f"{rate:,.0f}/s",
        f"{event.comparisons:,} compared",
        counted(event.findings, "finding"),
        event.now,
        f"not yet: {', '.join(event.missing)}" if event.missing else "",
    ]
    return "  ".join(part for part in parts if part)


def _mix(report: Report) -> Columns:
    """How often each feature came up."""
    cells = [f"{100 * count / report.scenarios:5.1f} {name}" for name, count in report.covered]
    return Columns(cells, title="features covered, in % of scenarios:", column_first=True)


def print_contracts() -> None:
    """Print each contract's rule, why it matters, and what breaks without it."""
    console = Console(highlight=False, emoji=False)
    for contract in all_contracts():
        console.print(Text(f"{contract.name} ({contract.phase})", style="bold"))
        console.print(escape(f"  {contract.rule}"))
        console.print(escape(f"  Why: {contract.why}"))
        console.print(escape(f"  Without it: {contract.without}"))


def print_subjects() -> None:
    """Print the built-in subjects and how others are named."""
    from impl.builtin import BUILTIN

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for subject in BUILTIN.values():
        console.print(escape(f"{subject.name:11} {subject.about}; rows: {' or '.join(subject.rows)}"))
    console.print("vllm==X.Y.Z a release of vLLM, its pooling layer alone, fetched once")
    console.print("vllm@DIR    a checkout of vLLM or an unpacked wheel, its pooling layer alone")
    console.print("vllm        the pooling layer of the vLLM installed in this environment")
    console.print("vllm-v1, vllm-v2   its scheduler with the V1 or V2 runner; also with ==X.Y.Z or @DIR")
    console.print("path/to/file.py:factory or package.module:factory   your own: see the README")
