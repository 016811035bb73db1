"""The command `bench`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from fuzz.bench.run import Result

DEFAULT_ROUNDS: Final = 100
TOO_SLOW: Final = 1
INCONCLUSIVE: Final = 3
FILE: Final = click.Path(path_type=Path, dir_okay=False)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)


class Percent(click.ParamType[float]):
    """A percentage such as 5%."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A fraction."""
        try:
            fraction = float(str(value).strip().removesuffix("%")) / 100
        except ValueError:
            fraction = -1.0
        if not 0 <= fraction < float("inf"):
            self.fail(f"{value!r} is not a percentage; say for example 5%", param, ctx)
        return fraction


def too_slow(results: Sequence["Result"], limit: float) -> tuple[int, str]:
    """The exit code of `--fail-if-slower`, and why."""
    compared = [(result, result.beside_base) for result in results if result.beside_base is not None]
    slower = [f"{it.subject} on {it.workload.name}" for it, beside in compared if beside.low > 1 + limit]
    if slower:
        return TOO_SLOW, f"slower by more than {100 * limit:g} %: {', '.join(slower)}"
    unseen = [
        f"{it.subject} on {it.workload.name}"
        for it, beside in compared
        if beside.high > 1 + limit and beside.smallest_effect > limit
    ]
    if unseen:
        return INCONCLUSIVE, f"inconclusive: {100 * limit:g} % could not have been seen of {', '.join(unseen)}"
    return 0, f"nothing is slower by more than {100 * limit:g} %"


@click.command()
@click.option("--compare", nargs=2, metavar="SPEC SPEC", help="Two subjects; the second is told beside the first.")
@click.option("--subject", "specs", multiple=True, metavar="SPEC", help="One more. Repeatable.")
@click.option(
    "--workload", "patterns", multiple=True, metavar="NAME", default=("published*",), show_default=True,
    help="Or a pattern such as 'all-short-*'; '*' for all. Repeatable.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=10), default=DEFAULT_ROUNDS, show_default=True, metavar="N",
    help="Samples of each subject, up to six times as many if they scatter.",
)  # fmt: skip
@click.option("--fail-if-slower", type=Percent(), metavar="PERCENT", help="Exit with 1 if one is slower by more.")
@click.option(
    "--device", "device_name", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Where the hidden states lie; auto takes CUDA if there is one.",
)  # fmt: skip
@click.option("--markdown", type=FILE, metavar="PATH", help="Write the table as Markdown besides.")
@click.option("--html", type=FILE, metavar="PATH", help="Write a page with plots besides.")
@click.option("--svg", type=DIRECTORY, metavar="DIR", help="Write a plot for each family of workloads besides.")
@click.option(
    "--pytest-benchmark", type=FILE, metavar="PATH", help="Write what `pytest-benchmark compare` reads besides."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on the last line of stdout.")
def bench(
    compare: tuple[str, ...] | None, specs: tuple[str, ...], patterns: tuple[str, ...], rounds: int,
    fail_if_slower: float | None, device_name: str, markdown: Path | None, html: Path | None, svg: Path | None,
    pytest_benchmark: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Time poolers side by side, each first proved right on that very input.

    Left out, the subjects are all built-ins. Exit status: 1 if one is wrong, and so not timed, or slower
    than --fail-if-slower allows; 3 if such a difference could not have been seen.
    """
    # Imported here, so that the command line answers at once: torch takes its time.
    import torch

    from fuzz.bench import files, run
    from fuzz.bench.prepared import WrongError
    from fuzz.bench.table import Teller
    from fuzz.cli_corpus import COULD_NOT_RUN
    from impl.builtin import BUILTIN
    from impl.config import SubjectError
    from impl.loading import load
    from oracle.device.backend import NoDeviceError
    from oracle.device.named import named

    torch.set_num_threads(1)
    forms: dict[files.Form, Path | None] = {
        "markdown": markdown, "html": html, "svg": svg, "pytest-benchmark": pytest_benchmark
    }  # fmt: skip
    asked = {form: path for form, path in forms.items() if path is not None}
    wrong = ""
    try:
        files.check(asked)
        device = named(device_name)
        names = list(dict.fromkeys((*(compare or ()), *specs))) or list(BUILTIN)
        subjects = [load(spec) for spec in (compare or names)]
        subjects += [load(spec) for spec in names if compare and spec not in compare]
        if len(subjects) < 2:
            raise SubjectError("there is nothing to compare with; give two subjects")
        workloads = run.chosen(patterns)
        teller = Teller(run.machine(device), rounds, as_json)
        try:
            for workload in workloads:
                results = run.bench(subjects, workload, rounds, device)
                if results:
                    teller.workload(results)
        except WrongError as error:
            wrong = str(error)
        for form, path in asked.items() if teller.results else ():
            files.write(form, path, teller.results, teller.where, rounds)
    except (SubjectError, NoDeviceError, OSError, ImportError) as error:
        click.echo(f"could not run: {error}", err=True)
        sys.exit(COULD_NOT_RUN)
    if wrong:
        click.echo(wrong, err=True)
        sys.exit(1)
    code, note = (0, "") if fail_if_slower is None else too_slow(teller.results, fail_if_slower)
    teller.finished(note)
    sys.exit(code)
