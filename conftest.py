"""The option `--benchmark`: with it pytest runs the benchmarks and nothing else, without it everything but them."""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

BENCHMARKS: Final = Path(__file__).parent / "tests" / "benchmarks"

Collectors = list[pytest.Collector]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option. Pytest takes no abbreviations, so it can't be mistaken for one of pytest-benchmark's."""
    parser.addoption("--benchmark", action="store_true", help="run the benchmarks in tests/benchmarks, and only them")


# `pytest_ignore_collect` is not asked about files that are named on the command line; this is.
@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Collectors, Collectors]:
    """Leave out files of the other kind, before they are imported.

    Raises:
        CollectError: the command line names such a file.
    """
    collectors = yield
    wanted: bool = parent.config.getoption("--benchmark")
    is_benchmark = BENCHMARKS in file_path.parents
    if is_benchmark == wanted:
        return collectors
    if parent.session.isinitpath(file_path):
        holds, cure = ("benchmarks", "add") if is_benchmark else ("no benchmarks", "leave out")
        raise parent.CollectError(f"{file_path} holds {holds}: {cure} --benchmark")
    return []
