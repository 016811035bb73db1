"""The terminal and the JSON line: readers of the events, and the only ones that print."""

import json
import shlex
from typing import Any

import click
import msgspec
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from fuzz.campaign import Event, Found, Progressed, Report, Started
from fuzz.findings import Finding
from oracle.contracts import Contract, all_contracts
from oracle.scenario import Scenario, Step, Traffic


class Terminal:
    """Tells a person how a run goes; with `as_json` on stderr, so that stdout is for the JSON line."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        self._live: Live | None = None
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
            Console(stderr=True, highlight=False, soft_wrap=True).print(Text(report.error, style="red"))
        style = {"holds": "bold green", "violates": "bold red"}.get(report.verdict, "bold yellow")
        told = f"{report.verdict}: {_count(len(report.findings), 'finding')} on {', '.join(report.subjects)}"
        say(Text(told, style=style))
        if self.as_json:
            click.echo(json.dumps(_as_json(report)))

    def could_not_run(self, why: str) -> None:
        """Say why nothing was judged."""
        self._stop_live()
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"could not run: {why}", style="red"))
        if self.as_json:
            empty: dict[str, Any] = _as_json(Report([], None))
            click.echo(json.dumps({**empty, "verdict": "error", "error": why}))

    def _started(self, event: Started) -> None:
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
            return
        if self._live is None:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        rate = event.scenarios / event.elapsed_s if event.elapsed_s else 0.0
        self._live.update(
            Text(
                f"{event.elapsed_s:5.1f} s  {event.scenarios:,} scenarios  {rate:,.0f}/s  "
                f"{event.comparisons:,} compared  {_count(event.findings, 'finding')}  {event.now}"
            ),
            refresh=True,
        )

    def _found(self, finding: Finding) -> None:
        say = self.console.print
        say()
        say(Text(f"{finding.contract} is broken by {finding.subject}", style="bold red"))
        say(escape(f"  {finding.message}"))
        if finding.place:
            say(escape(f"  raised at {finding.place}"))
        say(escape(f"  rule: {_contract(finding.contract).rule}"))
        for line in describe(finding.scenario):
            say(escape(f"  {line}"))
        if finding.file:
            say(escape(f"  replay: poolproof replay {shlex.quote(finding.file)}{self.replay_options}"))

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(scenario: Scenario) -> list[str]:
    """A scenario in a few lines."""
    lines = []
    for request in scenario.requests:
        parts = [f"request {request.name}: {request.task} ({scenario.pooling_type(request)})"]
        parts.append(_count(request.prompt_len, "token"))
        for field, plain in (
            ("num_cached_tokens", 0), ("dimensions", None), ("use_activation", True), ("step_tag_id", None),
            ("returned_token_ids", None), ("nan_at", None), ("inf_at", None), ("zero_at", None),
        ):  # fmt: skip
            value = getattr(request, field)
            if value != plain:
                parts.append(f"{field} {value}")
        if request.step_tag_id is not None:
            parts.append(f"prompt {list(request.prompt_token_ids[:16])}")
        lines.append(", ".join(parts))
    if scenario.traffic is not None:
        lines += _describe_traffic(scenario, scenario.traffic)
    lines += [f"step {place}: {_describe_step(step)}" for place, step in enumerate(scenario.steps)]
    changed = {
        name: value for name, value in json.loads(_encoded(scenario.options)).items() if name != "seed" and value != {}
    }
    lines.append("options: " + (", ".join(f"{name} {value}" for name, value in changed.items()) or "default"))
    return lines


def _describe_traffic(scenario: Scenario, traffic: Traffic) -> list[str]:
    lines = []
    for request, arrival in zip(scenario.requests, traffic.arrivals, strict=True):
        parts = [f"request {request.name} arrives before step {arrival.at}"]
        if arrival.priority:
            parts.append(f"priority {arrival.priority}")
        if arrival.abort_at is not None:
            parts.append(f"is aborted before step {arrival.abort_at}")
        lines.append(", ".join(parts))
    engine = json.loads(_encoded(msgspec.structs.replace(traffic, arrivals=())))
    del engine["arrivals"]
    lines.append("engine: " + (", ".join(f"{name} {value}" for name, value in engine.items()) or "default"))
    return lines


def _describe_step(step: Step) -> str:
    parts = [f"preempt {name}" for name in step.preempted] + [f"abort {name}" for name in step.aborted]
    parts += [f"{name} {_count(count, 'token')}" for name, count in step.scheduled] or ["nobody"]
    if step.padding:
        parts.append(_count(step.padding, "padding row"))
    if step.empty_group_at is not None:
        parts.append(f"an empty subgroup at {step.empty_group_at}")
    return ", ".join(parts)


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _mix(report: Report) -> Columns:
    """How often each feature came up."""
    cells = [f"{100 * count / report.scenarios:5.1f} {name}" for name, count in report.mix.most_common()]
    return Columns(cells, title="features covered, in % of scenarios:", column_first=True)


def _contract(name: str) -> Contract[Any]:
    return next(contract for contract in all_contracts() if contract.name == name)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "subjects": report.subjects,
        "seed": report.seed,
        "scenarios": report.scenarios,
        "comparisons": report.comparisons,
        "findings": [finding.to_builtins() for finding in report.findings],
        "elapsed_s": round(report.elapsed_s, 3),
        "mix": dict(report.mix),
        "doubts": report.doubts,
        "notes": report.notes,
    }


def print_contracts() -> None:
    """Print each contract's rule, why it matters, and what breaks without it."""
    console = Console(highlight=False)
    for contract in all_contracts():
        console.print(Text(f"{contract.name} ({contract.phase})", style="bold"))
        console.print(escape(f"  {contract.rule}"))
        console.print(escape(f"  Why: {contract.why}"))
        console.print(escape(f"  Without it: {contract.without}"))


def print_subjects() -> None:
    """Print the built-in subjects and how others are named."""
    from impl.builtin import BUILTIN

    console = Console(highlight=False, soft_wrap=True)
    for subject in BUILTIN.values():
        console.print(escape(f"{subject.name:11} {subject.about}; rows: {' or '.join(subject.rows)}"))
    console.print("vllm==X.Y.Z a release of vLLM, its pooling layer alone, fetched once")
    console.print("vllm@DIR    a checkout of vLLM or an unpacked wheel, its pooling layer alone")
    console.print("vllm        the pooling layer of the vLLM installed in this environment")
    console.print("vllm-v1, vllm-v2   its scheduler with the V1 or V2 runner")
    console.print("path/to/file.py:factory or package.module:factory   your own: see the README")
