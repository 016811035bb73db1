"""How fast the fuzzer is, beside plain Hypothesis on the same property and mix, and beside the bare calls.

Hypothesis and the seeded draw use the one generator and judge each scenario in full; only the source of choices
differs. Rounds alternate, so that a machine that slows down slows both. Nothing is asserted about time.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from statistics import median
from typing import Any, Final

import click
import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from pytest_benchmark.fixture import BenchmarkFixture

from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.mix import for_subjects
from fuzz.start import run
from fuzz.strategies import scenarios
from fuzz.verdict import Judgement
from impl.builtin import BUILTIN
from impl.config import Level, Outputs, PoolerConfig, PoolFn
from oracle.scenario import Scenario

SCENARIOS: Final = 300
ROUNDS: Final = 5
SUBJECT: Final = BUILTIN["hostsplit"]
MIX: Final = for_subjects([SUBJECT])
CPU: Final = torch.device("cpu")

Judge = Callable[[Scenario], object]
Source = Callable[[int, Judge], None]


def with_seeds(first_seed: int, judge: Judge) -> None:
    """Judge scenarios of the seeded draw."""
    for seed in range(first_seed, first_seed + SCENARIOS):
        judge(generate(SeededDraw(seed), MIX))


def with_hypothesis(first_seed: int, judge: Judge) -> None:
    """Judge the same number of scenarios of plain Hypothesis, in all its phases."""

    @hypothesis.seed(first_seed)
    @settings(max_examples=SCENARIOS, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(scenarios(MIX))
    def holds(scenario: Scenario) -> None:
        judge(scenario)

    holds()


def measured(source: Source, first_seed: int) -> tuple[float, float]:
    """Scenarios judged, and results compared, per second."""
    judgements: list[Judgement] = []
    started_s = time.perf_counter()
    source(first_seed, lambda scenario: judgements.append(run(scenario, SUBJECT, CPU)))
    elapsed_s = time.perf_counter() - started_s
    assert len(judgements) == SCENARIOS
    assert not any(judgement.verdict.is_finding for judgement in judgements)
    return SCENARIOS / elapsed_s, sum(judgement.comparisons for judgement in judgements) / elapsed_s


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the command line runs: on tensors this small threads cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_seeded_draw_against_hypothesis(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    rounds: list[tuple[float, ...]] = []
    first_seeds = count(0, SCENARIOS)

    def both() -> None:
        first_seed = next(first_seeds)
        rounds.append((*measured(with_seeds, first_seed), *measured(with_hypothesis, first_seed)))

    with torch.inference_mode():
        benchmark.pedantic(both, rounds=ROUNDS)
    report = [f"the seeded draw beside Hypothesis, medians of {len(rounds)} alternating rounds:"]
    # A scenario may hold little or much, so the results compared are told too.
    for place, what in enumerate(("scenarios", "results")):
        seeded, plain = (median(each[column] for each in rounds) for column in (place, place + 2))
        ratio = median(each[place] / each[place + 2] for each in rounds)
        report.append(f"{seeded:,.0f} and {plain:,.0f} {what} per second, ratio {ratio:.2f}")
        benchmark.extra_info |= {
            f"seeded_{what}_per_s": seeded, f"hypothesis_{what}_per_s": plain, f"{what}_ratio": ratio
        }  # fmt: skip
    with capsys.disabled():
        click.echo("\n" + "\n  ".join(report))


@pytest.mark.usefixtures("one_thread")
def test_a_whole_scenario_beside_the_bare_calls_in_it(
    benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    in_calls_s = 0.0

    def build(config: PoolerConfig, level: Level) -> PoolFn:
        pool = SUBJECT.build(config, level)

        def timed(hidden_states: torch.Tensor, metadata: Any) -> Outputs:
            nonlocal in_calls_s
            started_s = time.perf_counter()
            try:
                return pool(hidden_states, metadata)
            finally:
                in_calls_s += time.perf_counter() - started_s

        return timed

    subject = replace(SUBJECT, build=build)
    first_seeds = count(0, SCENARIOS)
    ratios: list[float] = []

    def judge_all() -> None:
        nonlocal in_calls_s
        in_calls_s, started_s = 0.0, time.perf_counter()
        with_seeds(next(first_seeds), lambda scenario: run(scenario, subject, CPU))
        ratios.append((time.perf_counter() - started_s) / in_calls_s)

    with torch.inference_mode():
        benchmark.pedantic(judge_all, rounds=2 * ROUNDS)
    benchmark.extra_info["times_the_bare_calls"] = median(ratios)
    with capsys.disabled():
        click.echo(
            f"\na whole scenario takes {median(ratios):.1f} times its bare calls "
            f"(median of {len(ratios)} rounds; {min(ratios):.1f} to {max(ratios):.1f})"
        )
