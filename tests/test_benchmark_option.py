"""`pytest --benchmark` runs the benchmarks and only them; without it they are not even imported."""

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the real option and settings, a test and a benchmark."""
    # Each run imports the plugins anew; this one has no part in it and takes longest.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, pytester.path)
    benchmarks = pytester.path / "tests" / "benchmarks"
    benchmarks.mkdir(parents=True)
    (benchmarks.parent / "test_thing.py").write_text("def test_thing(): pass")
    (benchmarks / "test_rate.py").write_text("def test_rate(benchmark): benchmark.pedantic(len, ('',))")
    return pytester


@pytest.mark.parametrize("paths", [[], ["."], ["tests"]], ids=str)
def test_without_the_option_benchmarks_are_left_out(project: pytest.Pytester, paths: list[str]) -> None:
    (project.path / "tests" / "benchmarks" / "test_rate.py").write_text("raise ImportError('of a benchmark')")
    result = project.runpytest_inprocess("--verbose", *paths)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_thing PASSED*"])


@pytest.mark.parametrize(
    "paths", [[], ["."], ["tests"], ["tests/benchmarks"], ["tests/benchmarks/test_rate.py::test_rate"]], ids=str
)
def test_with_it_nothing_else_runs(project: pytest.Pytester, paths: list[str]) -> None:
    (project.path / "tests" / "test_thing.py").write_text("raise ImportError('of a test')")
    result = project.runpytest_inprocess("--verbose", "--benchmark", *paths)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_rate PASSED*", "*1 tests*"])


def test_options_of_pytest_benchmark_go_with_it(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--benchmark-columns=median", "--benchmark", "--benchmark-only")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Name * Median*"])


def test_options_of_pytest_benchmark_do_not_stand_for_it(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--verbose", "--benchmark-disable")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_thing PASSED*"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tests/benchmarks/test_rate.py"], "*test_rate.py holds benchmarks: add --benchmark"),
        (["--benchmark", "tests/test_thing.py"], "*test_thing.py holds no benchmarks: leave out --benchmark"),
    ],
    ids=str,
)
def test_a_file_of_the_other_kind_is_refused_by_name(project: pytest.Pytester, arguments: list[str], told: str) -> None:
    result = project.runpytest_inprocess(*arguments)
    assert result.ret != pytest.ExitCode.OK
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([told])
