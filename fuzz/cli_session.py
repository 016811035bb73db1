"""What every command that runs something does besides: its reader of events, its report, and its way out."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fuzz.cli_corpus import COULD_NOT_RUN

if TYPE_CHECKING:
    import torch

    from fuzz.campaign import Report
    from fuzz.ledger import Known


class Session:
    """One command: its reader of events, its report, and its way out."""

    def __init__(self, as_json: bool, reports: tuple[tuple[str, Path], ...] = ()) -> None:
        from fuzz.settings import Found
        from fuzz.terminal import Terminal

        self.reports = reports
        self.terminal: Terminal = Terminal(as_json)
        self.report: Report | None = None
        found = click.get_current_context().find_object(Found)
        if found is not None:
            # Not on stdout, where `export` writes.
            click.echo(f"settings: {found.path}", err=True)

    def __enter__(self) -> "Session":
        import torch

        # Tensors are small: threads cost more than they bring, and runs should repeat.
        torch.set_num_threads(1)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        from fuzz.cluster import ClusterError
        from fuzz.findings import ExportError
        from impl.config import SubjectError
        from oracle.device.backend import NoDeviceError
        from oracle.scenario import ScenarioError

        if isinstance(error, (ClusterError, ExportError, SubjectError, ScenarioError, NoDeviceError, OSError)):
            self.terminal.could_not_run(str(error))
            sys.exit(COULD_NOT_RUN)

    def specs(self, specs: tuple[str, ...]) -> list[str]:
        """The specs given, or all built-ins, each once."""
        from impl.builtin import BUILTIN

        return list(dict.fromkeys(specs)) or list(BUILTIN)

    def subjects(self, specs: tuple[str, ...], sync_budget: int | None = None) -> list[Any]:
        """What the specs name.

        Raises:
            SubjectError: one of them can't be had.
        """
        from impl.loading import load

        return [load(spec, sync_budget) for spec in self.specs(specs)]

    def device(self, name: str, sync_budget: int | None = None) -> "torch.device":
        """The device of that name; a replay is told to use the same, and the same budget.

        Raises:
            NoDeviceError: there is none here, or none on which a budget can be held.
        """
        from oracle.device.backend import NoDeviceError
        from oracle.device.named import named

        device = named(name)
        if device.type == "cpu" and sync_budget is not None:
            raise NoDeviceError("on a CPU nothing waits, so no sync budget can be held; run with --device sim")
        self.terminal.replay_options = f" --device {device.type}" if device.type != "cpu" else ""
        if sync_budget is not None:
            self.terminal.replay_options += f" --sync-budget {sync_budget}"
        return device

    def ledger(self, directory: Path) -> list["Known"]:
        """What is known of failures: what ships, and the project's own.

        Raises:
            ScenarioError: an entry is damaged.
        """
        from fuzz.ledger import entries, shipped

        return [*shipped(), *entries(directory)]

    def exit(self, known: str = "report") -> NoReturn:
        """Print the report and leave with its exit code."""
        assert self.report is not None
        self.report.allows_known = known == "allow"
        self._write_reports(self.report)
        self.terminal.finished(self.report)
        sys.exit(self.report.exit_code)

    def _write_reports(self, report: "Report") -> None:
        """Write the reports asked for; one that can't be written is an error, told with all that was found."""
        from fuzz.reports.forms import write

        for form, path in self.reports:
            try:
                write(form, report, path)
                report.notes.append(f"{form} report: {path}")
            except OSError as error:
                report.error = f"the {form} report can't be written: {error}"
