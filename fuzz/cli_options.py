"""Arguments that commands share, and how their values are read. Nothing here imports torch."""

from pathlib import Path
from typing import Any, Final

import click

from fuzz.cli_corpus import FINDINGS, LEDGER

DEFAULT_MAX_TIME = "30s"


class Duration(click.ParamType[float]):
    """A time span such as 90, 30s, 5m or 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        text = str(value).strip().lower()
        factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
        try:
            seconds = float(text[:-1]) * factor if factor else float(text)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} is not a time span; say for example 30s, 5m or 2h", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """An amount of memory such as 500MB or 4GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        number, unit = str(value).strip().upper()[:-2], str(value).strip().upper()[-2:]
        factor = {"MB": 1 << 20, "GB": 1 << 30}.get(unit, 0)
        try:
            size = int(float(number) * factor)
        except (ValueError, OverflowError):
            size = 0
        if size <= 0:
            self.fail(f"{value!r} is not an amount of memory; say for example 500MB or 4GB", param, ctx)
        return size


subject_option = click.option(
    "--subject", "specs", multiple=True, metavar="SPEC",
    help="A built-in name, vllm==X.Y.Z, vllm@DIR, vllm, vllm-v1, vllm-v2 (also ==X.Y.Z or @DIR), "
    "path/to/file.py:factory or package.module:factory. Repeatable. Left out: all built-ins.",
)  # fmt: skip
device_option = click.option(
    "--device", "device_name", type=click.Choice(["auto", "cpu", "cuda", "sim"]), default="auto", show_default=True,
    help="Where the hidden states lie; auto takes CUDA if there is one. sim: a simulated device, on which waits count.",
)  # fmt: skip
budget_option = click.option(
    "--sync-budget", type=click.IntRange(min=0), metavar="N",
    help="How often a call may wait for the device, instead of what each subject declares.",
)  # fmt: skip
save_option = click.option(
    "--save", "directory", type=click.Path(path_type=Path, file_okay=False), default=FINDINGS,
    show_default=True, metavar="DIR", help="Where findings are kept.",
)  # fmt: skip


class ReportForm(click.ParamType[tuple[str, Path]]):
    """A form of report, and where it goes: `html` or `html=path/to/file`."""

    name = "report"
    default_names: Final = {
        "html": "report.html", "junit": "junit.xml", "sarif": "report.sarif", "github": "annotations.txt",
        "json": "report.json", "markdown": "report.md",
    }  # fmt: skip

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        """Form and path."""
        form, _, path = str(value).partition("=")
        if form not in self.default_names:
            self.fail(f"{form!r} is no form of report; say one of {', '.join(self.default_names)}", param, ctx)
        return form, Path(path or f".poolproof/{self.default_names[form]}")


hang_option = click.option(
    "--hang-after", type=Duration(), default="10s", show_default=True, metavar="TIME",
    help="How long a scenario may take before its process is ended and it counts as one that hangs.",
)  # fmt: skip
memory_option = click.option(
    "--memory-limit", type=Size(), default="4GB", show_default=True, metavar="SIZE",
    help="How much each process may allocate beyond what it begins with, on Linux and not with CUDA.",
)  # fmt: skip
ledger_option = click.option(
    "--ledger", "ledger_directory", type=click.Path(path_type=Path, file_okay=False), default=LEDGER,
    show_default=True, metavar="DIR", help="The project's own known failures, besides those that ship.",
)  # fmt: skip
known_option = click.option(
    "--known", type=click.Choice(["report", "allow"]), default="report", show_default=True,
    help="Whether a finding that the ledger of known failures has still counts, or only new ones do.",
)  # fmt: skip
report_option = click.option(
    "--report", "reports", type=ReportForm(), multiple=True, metavar="FORM[=PATH]",
    help="Write a report besides: html, junit, sarif, github, json or markdown. Repeatable.",
)  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object on the last line of stdout."
)
