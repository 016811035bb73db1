"""The files that a run of `bench` leaves behind, by the form in which they tell its results."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from fuzz.bench.page import page
from fuzz.bench.plots import plots
from fuzz.bench.run import Result
from fuzz.bench.stored import stored
from fuzz.bench.table import markdown
from fuzz.findings import write_atomically

Form = Literal["markdown", "html", "svg", "pytest-benchmark"]

_TAKES: Final[dict[Form, str]] = {"html": "matplotlib", "svg": "matplotlib", "pytest-benchmark": "pytest_benchmark"}
"""Packages that are not among those that Poolproof needs."""


def check(forms: Iterable[Form]) -> None:
    """Find out before anything is timed whether the forms can be written.

    Raises:
        ImportError: a package that one takes is not installed, with what to do.
    """
    for form in forms:
        package = _TAKES.get(form)
        if package is not None and find_spec(package) is None:
            raise ImportError(f"--{form} takes {package}, which isn't installed: pip install 'poolproof[bench]'")


def write(form: Form, path: Path, results: Sequence[Result], where: str, rounds: int) -> None:
    """Write one of the forms of one result or more; `svg` is a directory of plots, the others are files.

    Raises:
        OSError: it can't be written.
    """
    match form:
        case "markdown":
            write_atomically(path, markdown(results, where, rounds))
        case "html":
            write_atomically(path, page(results, where, rounds))
        case "pytest-benchmark":
            write_atomically(path, stored(results))
        case "svg":
            for name, picture in plots(results).items():
                write_atomically(path / f"{name}.svg", picture)
