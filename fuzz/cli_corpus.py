"""`poolproof corpus`: what is kept of findings, from the command line."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import torch

    from fuzz.corpus import Rerun
    from fuzz.ledger import Kind

FINDINGS = Path(".poolproof/findings")
REGRESSIONS = Path(".poolproof/regressions")
LEDGER = Path(".poolproof/known")
COULD_NOT_RUN = 2

directory_argument = click.argument(
    "directory", type=click.Path(path_type=Path, file_okay=False), default=FINDINGS, metavar="[DIR]"
)


@click.group()
def corpus() -> None:
    """List, run again, clear or promote the findings that are kept.

    Exit status: 0 nothing is wrong any more, 1 something reproduces, 2 something could not run.
    """


@corpus.command("list")
@directory_argument
def list_findings(directory: Path) -> None:
    """List the findings of DIR, and what can't be read there."""
    with _told():
        from fuzz.corpus import entries
        from fuzz.explain import headline

        kept = entries(directory)
        for entry in kept:
            click.echo(
                f"{entry.path.name}: {headline(entry.finding) if entry.finding else f'damaged: {entry.problem}'}"
            )
        click.echo(f"{len(kept)} kept in {directory}")
    sys.exit(COULD_NOT_RUN if any(entry.problem for entry in kept) else 0)


@corpus.command()
@directory_argument
def rerun(directory: Path) -> None:
    """Run each finding again on the subject it names."""
    with _told():
        from fuzz.corpus import rerun as run

        _tell(run(directory, _cpu()))


@corpus.command()
@directory_argument
def prune(directory: Path) -> None:
    """Run each finding again, and remove those that are gone."""
    with _told():
        from fuzz.corpus import prune as run

        _tell(run(directory, _cpu()), gone="removed, for it is ")


@corpus.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="What to call it; contract and fingerprint if left out.")
@click.option(
    "--to", "directory", type=click.Path(path_type=Path, file_okay=False), default=REGRESSIONS, show_default=True,
    metavar="DIR", help="Where fixed scenarios are kept; `poolproof check` runs those of the default.",
)  # fmt: skip
def promote(file: Path, name: str | None, directory: Path) -> None:
    """Make the scenario of a finding one that `poolproof check` runs from now on."""
    with _told():
        from fuzz.corpus import promote as keep

        click.echo(f"`poolproof check` runs {keep(file, directory, name)} from now on")


@corpus.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--all", "every", is_flag=True, help="Each finding that is kept, but for those known already.")
@click.option(
    "--from", "findings", type=click.Path(path_type=Path, file_okay=False), default=FINDINGS, show_default=True,
    metavar="DIR", help="Where --all finds them.",
)  # fmt: skip
@click.option("--name", help="What to call it; the file's name if left out.")
@click.option("--why", default="", help="What is wrong, and why it is left as it is.")
@click.option("--url", default="", help="Where it is tracked.")
@click.option(
    "--kind", type=click.Choice(["fault", "limit", "demand"]), default="fault", show_default=True,
    help="It is wrong; it serves nobody who hands it this; or more is asked than its maker promises.",
)  # fmt: skip
@click.option(
    "--to", "directory", type=click.Path(path_type=Path, file_okay=False), default=LEDGER, show_default=True,
    metavar="DIR", help="Where the ledger is; `fuzz` and `check` read that of the default.",
)  # fmt: skip
def accept(
    files: tuple[Path, ...], every: bool, findings: Path, name: str | None, why: str, url: str, kind: "Kind",
    directory: Path,
) -> None:  # fmt: skip
    """Enter findings into the ledger of known failures, so that `--known allow` lets them pass.

    An entry that no longer reproduces is an error, so none outlives what it excuses.
    """
    if bool(files) == every:
        raise click.UsageError("say which FILES, or --all")
    if name and (every or len(files) > 1):
        raise click.UsageError("--name is for one file")
    with _told():
        from fuzz.corpus import accept as enter
        from fuzz.corpus import unknown

        new = unknown(findings) if every else list(files)
        if not new:
            click.echo(f"nothing in {findings} that isn't known")
        for file in new:
            click.echo(f"known from now on: {enter(file, directory, name or '', why, url, kind)}")


def corpus_defaults(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What the settings say of where things are kept, by command and parameter."""
    kept = dict.fromkeys(("list", "rerun", "prune"), "save")
    keys = {**kept, "promote": "regressions", "accept": "ledger"}
    defaults = {command: {"directory": values[key]} for command, key in keys.items() if key in values}
    if "save" in values:
        defaults.setdefault("accept", {})["findings"] = values["save"]
    return defaults


def _tell(results: Iterable["Rerun"], gone: str = "") -> None:
    from fuzz.corpus import State

    seen = set()
    for result in results:
        seen.add(result.state)
        told = result.told if result.told.startswith(result.state.value) else f"{result.state.value}: {result.told}"
        click.echo(f"{result.kept.path.name}: {gone if result.state is State.GONE else ''}{told}")
    wrong = seen & {State.REPRODUCES, State.DIFFERS}
    sys.exit(COULD_NOT_RUN if State.COULD_NOT_RUN in seen else int(bool(wrong)))


def _cpu() -> "torch.device":
    import torch

    torch.set_num_threads(1)
    return torch.device("cpu")


@contextmanager
def _told() -> Iterator[None]:
    """Tell what can't be done, in one sentence."""
    from impl.config import SubjectError
    from oracle.scenario import ScenarioError

    try:
        yield
    except (ScenarioError, SubjectError, OSError) as error:
        click.echo(f"could not run: {error}", err=True)
        sys.exit(COULD_NOT_RUN)
