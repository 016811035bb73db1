"""Poolproof inside a pytest suite: a marker that judges a subject, and the contracts as a fixture.

    @pytest.mark.poolproof(subject=factory)
    def test_my_pooler(): ...

Loaded by pytest wherever the package is installed, so nothing heavy is imported until a test asks for it.
"""

from __future__ import annotations

import secrets
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fuzz.campaign import Report
    from impl.config import Subject

DEFAULT_MAX_TIME_S = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("poolproof")
    group.addoption("--poolproof-seed", type=int, metavar="N", help="repeats a run; drawn and printed if left out")
    group.addoption(
        "--poolproof-max-time", type=_duration, default=DEFAULT_MAX_TIME_S, metavar="TIME",
        help="for each marked test, such as 30s or 5m, unless its marker says otherwise; 10s if left out",
    )  # fmt: skip
    group.addoption(
        "--poolproof-save",
        type=Path,
        default=Path(".poolproof/findings"),
        metavar="DIR",
        help="where findings are kept",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and draw the seed that all workers share."""
    config.addinivalue_line(
        "markers",
        "poolproof(subject, max_time=None, max_scenarios=None): judge a pooler, given as a spec or as a factory, "
        "before the test's own body runs",
    )
    if config.option.poolproof_seed is None:
        # Workers of pytest-xdist are handed the options, so they find it drawn.
        config.option.poolproof_seed = secrets.randbelow(1 << 32)


def pytest_report_header(config: pytest.Config) -> str:
    """Say the seed, also where everything passes."""
    return f"poolproof: seed {config.option.poolproof_seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the subject of a marked test; what is found is its failure."""
    for marker in item.iter_markers("poolproof"):
        _judge(item.config, **_arguments(*marker.args, **marker.kwargs))
    return (yield)


@pytest.fixture
def guard() -> Callable[..., Any]:
    """`guard(pooler)`: the same pooler, raising `ContractError` at the call that breaks a contract."""
    from oracle.guard import guard

    return guard


def _arguments(
    subject: str | Callable[..., Any], max_time: str | float | None = None, max_scenarios: int | None = None
) -> dict[str, Any]:
    """The marker's arguments, checked by the signature."""
    return {"subject": subject, "max_time": max_time, "max_scenarios": max_scenarios}


def _judge(
    config: pytest.Config, subject: str | Callable[..., Any], max_time: str | float | None, max_scenarios: int | None
) -> None:
    import torch

    from fuzz.campaign import Budget, fuzz
    from fuzz.reports.as_markdown import told
    from impl.config import SubjectError

    max_time_s = config.option.poolproof_max_time if max_time is None else _duration(str(max_time))
    if max_time is None and max_scenarios is not None:
        max_time_s = None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report: Report = fuzz(
            [_subject(subject)],
            Budget(max_time_s, max_scenarios),
            config.option.poolproof_seed,
            torch.device("cpu"),
            config.option.poolproof_save,
        )
    except SubjectError as error:
        pytest.fail(f"could not run: {error}", pytrace=False)
    finally:
        torch.set_num_threads(threads)
    if report.verdict != "holds":
        parts = [told(finding) for finding in report.findings]
        parts += [f"{report.verdict}: {why}" for why in (*report.doubts, report.error) if why]
        pytest.fail("\n\n".join(parts), pytrace=False)


def _subject(subject: str | Callable[..., Any]) -> Subject:
    from impl.loading import from_factory, load

    if isinstance(subject, str):
        return load(subject)
    return from_factory(subject, f"{subject.__module__}:{subject.__qualname__}")


def _duration(text: str) -> float:
    """Seconds.

    Raises:
        ArgumentTypeError: it is no time span.
    """
    import click

    from fuzz.cli_options import Duration

    try:
        return Duration().convert(text, None, None)
    except click.BadParameter as error:
        raise ArgumentTypeError(error.message) from None
