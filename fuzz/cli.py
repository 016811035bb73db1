"""The commands. Each parses, calls, and hands events to a reader; torch is imported only when needed."""

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fuzz.bench.cli import bench
from fuzz.cli_corpus import COULD_NOT_RUN, REGRESSIONS, corpus, corpus_defaults
from fuzz.cli_options import (
    DEFAULT_MAX_TIME,
    Duration,
    budget_option,
    device_option,
    hang_option,
    json_option,
    known_option,
    ledger_option,
    memory_option,
    report_option,
    save_option,
    subject_option,
)
from fuzz.cli_session import Session

if TYPE_CHECKING:
    from fuzz.settings import Found


def _version() -> str:
    try:
        return metadata.version("poolproof")
    except metadata.PackageNotFoundError:
        return "not installed, run in place"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="poolproof")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Judge pooling layers of LLM serving engines against an oracle, on any schedule.

    What options are left out is taken from poolproof.toml, or [tool.poolproof] of pyproject.toml, of the nearest
    directory upwards that has one.

    Exit status: 0 holds, 1 violated, 2 could not run, 3 inconclusive.
    """
    from fuzz.settings import SettingsError, find

    try:
        found = find(Path.cwd())
        if found is not None:
            ctx.obj, ctx.default_map = found, _defaults(found, ctx)
    except SettingsError as error:
        click.echo(f"could not run: {error}", err=True)
        sys.exit(COULD_NOT_RUN)


def _defaults(found: "Found", ctx: click.Context) -> dict[str, Any]:
    """The settings as click takes them: by command and parameter.

    Raises:
        SettingsError: an option can't take the value.
    """
    from fuzz.settings import COMMANDS, SettingsError

    values = found.values()
    defaults: dict[str, Any] = {}
    for command, keys in COMMANDS.items():
        options = {option: param for param in main.commands[command].params for option in param.opts}
        defaults[command] = {}
        for key in keys:
            if key in values:
                param = options[f"--{key}"]
                try:
                    param.type_cast_value(ctx, values[key])
                except click.BadParameter as error:
                    raise SettingsError(f"{found.path}: {error.message} - at `$.{key}`") from None
                defaults[command][param.name] = values[key]
    defaults["corpus"] = corpus_defaults(values)
    return defaults


@main.command()
@subject_option
@click.option(
    "--max-time",
    type=Duration(),
    metavar="TIME",
    help=f"Such as 30s or 5m; {DEFAULT_MAX_TIME} if no limit is given.",
)
@click.option("--max-scenarios", type=click.IntRange(min=1), metavar="N", help="Stop after N scenarios.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats a run; drawn and printed if left out.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that share the scenarios; what is found doesn't depend on it. 0: in this process, unprotected.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where the scenarios are run: in processes of this machine, or on an existing Ray cluster (poolproof[ray]).",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="HOST:PORT of the Ray cluster; left out: that of $RAY_ADDRESS, or of this machine.",
)
@hang_option
@memory_option
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where the campaign stopped, or was killed, that kept its findings in the same place; "
    "--max-scenarios counts those before too.",
)
@device_option
@budget_option
@save_option
@ledger_option
@known_option
@report_option
@json_option
def fuzz(
    specs: tuple[str, ...], max_time: float | None, max_scenarios: int | None, seed: int | None,
    workers: int, engine: str, address: str | None, hang_after: float, memory_limit: int | None, resume: bool,
    device_name: str, sync_budget: int | None, directory: Path, ledger_directory: Path, known: str,
    reports: tuple[tuple[str, Path], ...], as_json: bool,
) -> NoReturn:  # fmt: skip
    """Search for a schedule on which a pooler is wrong."""
    with Session(as_json, reports) as session:
        import secrets

        from fuzz.campaign import Budget, Search
        from fuzz.campaign import fuzz as run_campaign
        from fuzz.cluster import in_cluster
        from fuzz.expendable import Limits
        from fuzz.state import kept_in
        from fuzz.workers import in_workers

        if resume and not workers:
            raise click.UsageError("--resume needs a worker process; leave out --workers 0")
        if engine == "ray" and _is_given("workers"):
            raise click.UsageError("--workers are processes of this machine; a Ray cluster's are as many as its CPUs")
        if address is not None and engine != "ray":
            raise click.UsageError("--address is that of a Ray cluster; add --engine ray")
        if max_time is None and max_scenarios is None:
            max_time = Duration().convert(DEFAULT_MAX_TIME, None, None)
        subjects = session.subjects(specs, sync_budget)
        device = session.device(device_name, sync_budget)
        state = kept_in(directory) if resume else None
        if state is not None:
            state.check([subject.spec for subject in subjects], device, seed)
            seed = state.seed
        limits = Limits(hang_after, memory_limit)
        search: Search | None = None
        if engine == "ray":
            search = in_cluster(address, limits, state)
        elif workers:
            search = in_workers(workers, limits, state)
        session.report = run_campaign(
            subjects,
            Budget(max_time, max_scenarios),
            secrets.randbelow(1 << 32) if seed is None else seed,
            device,
            directory,
            session.terminal.on_event,
            session.ledger(ledger_directory),
            search,
        )
    session.exit(known)


def _is_given(option: str) -> bool:
    """Whether it stands on the command line, rather than in settings."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


@main.command()
@subject_option
@device_option
@budget_option
@save_option
@click.option(
    "--regressions", type=click.Path(path_type=Path, file_okay=False), default=REGRESSIONS, show_default=True,
    metavar="DIR", help="The project's own fixed scenarios, besides those that ship.",
)  # fmt: skip
@click.option("--since", metavar="REF", help="Only if the subject's pooling differs from this commit.")
@ledger_option
@known_option
@report_option
@json_option
def check(
    specs: tuple[str, ...], device_name: str, sync_budget: int | None, directory: Path, regressions: Path,
    since: str | None, ledger_directory: Path, known: str, reports: tuple[tuple[str, Path], ...], as_json: bool,
) -> NoReturn:  # fmt: skip
    """Run the pre-merge check: every schedule of a small scope, then fixed scenarios.

    Scenarios that were promoted (`poolproof corpus promote`) are among the fixed ones.
    """
    with Session(as_json, reports) as session:
        from fuzz.campaign import Report
        from fuzz.check_each import check as run_check
        from fuzz.corpus import promoted
        from fuzz.since import changed_since

        named = session.specs(specs)
        if since is not None and not changed_since(since, named):
            session.report = Report(named, None, skipped=f"nothing that bears on it has changed since {since}")
        else:
            fixed = list(promoted(regressions))
            device = session.device(device_name, sync_budget)
            on_event, ledger = session.terminal.on_event, session.ledger(ledger_directory)
            session.report = run_check(named, device, directory, on_event, fixed, sync_budget, ledger)
    session.exit(known)


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@subject_option
@device_option
@budget_option
@click.option("--alone", is_flag=True, help="Without what the finding takes to have been run in the process before.")
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH",
    help="Write what the engine did, step by step; of one subject.",
)  # fmt: skip
@report_option
@json_option
def replay(
    file: Path, specs: tuple[str, ...], device_name: str, sync_budget: int | None, alone: bool, trace: Path | None,
    reports: tuple[tuple[str, Path], ...], as_json: bool,
) -> NoReturn:  # fmt: skip
    """Run a saved finding, scenario or trace again.

    Without --subject it runs on the subject that the finding or the trace names.
    """
    with Session(as_json, reports) as session:
        from fuzz.replay import replay as run_replay

        device = session.device(device_name, sync_budget)
        session.report = run_replay(file, specs, device, session.terminal.on_event, sync_budget, alone, trace)
    session.exit()


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--as", "form", type=click.Choice(["pytest", "issue"]), required=True, help="What to write.")
@click.option("--subject", "spec", metavar="SPEC", help="Run it on this subject first, and export what that shows.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="Where to; stdout if left out."
)
@device_option
def export(file: Path, form: str, spec: str | None, output: Path | None, device_name: str) -> None:
    """Write a saved finding as a standalone test, or as an issue for a tracker."""
    with Session(as_json=False) as session:
        from fuzz.export import as_issue, as_pytest
        from fuzz.findings import write_atomically
        from fuzz.replay import finding_in

        finding = finding_in(file, spec, session.device(device_name))
        text = as_pytest(finding) if form == "pytest" else as_issue(finding)
        if output is None:
            click.echo(text, nl=False)
        else:
            write_atomically(output, text)


@main.command()
@subject_option
@click.option("--compare", nargs=2, metavar="SPEC SPEC", help="Two subjects side by side; the same as --subject twice.")
@device_option
@json_option
def audit(specs: tuple[str, ...], compare: tuple[str, ...], device_name: str, as_json: bool) -> NoReturn:
    """Say what a step costs the device: reads, uploads, waits, kernels and bytes, and what each request adds.

    Where there is no CUDA it is the simulated device.
    """
    with Session(as_json) as session:
        from fuzz.audit import measure
        from fuzz.audit_table import failed, show

        device = session.device(device_name)
        if device.type == "cpu" and device_name == "auto":
            device = session.device("sim")
        rows = measure(session.subjects((*specs, *(compare or ()))), device)
        show(rows, str(device), as_json)
        sys.exit(failed(rows))
    raise AssertionError("a session that ends without an error has exited")


@main.command()
@click.argument("versions", nargs=-1)
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="Write it as a page besides."
)
@ledger_option
@json_option
def releases(versions: tuple[str, ...], markdown: Path | None, ledger_directory: Path, as_json: bool) -> NoReturn:
    """Check vLLM releases, all that load or VERSIONS, and say what is known of what is found.

    Exit status: 0 all that is found is known, 1 something is new, 2 something could not be judged.
    """
    with Session(as_json) as session:
        from fuzz.findings import write_atomically
        from fuzz.releases import RELEASES, survey
        from fuzz.releases_table import progress, show

        wanted = [version for version in RELEASES if version in versions] if versions else list(RELEASES)
        unknown = sorted(set(versions) - set(RELEASES))
        if unknown:
            raise click.UsageError(f"no release that loads: {', '.join(unknown)}; those that do: {', '.join(RELEASES)}")
        with progress(len(wanted)) as tell:
            seen = survey(wanted, session.ledger(ledger_directory), tell)
        show(seen, as_json)
        if markdown is not None:
            write_atomically(markdown, seen.as_markdown())
        sys.exit(seen.exit_code)
    raise AssertionError("a session that ends without an error has exited")


@main.command()
def contracts() -> None:
    """List the contracts: the rule, why it matters, what breaks without it."""
    from fuzz.terminal import print_contracts

    print_contracts()


@main.command()
def subjects() -> None:
    """List the built-in subjects and how to name others."""
    from fuzz.terminal import print_subjects

    print_subjects()


main.add_command(corpus)
main.add_command(bench)
