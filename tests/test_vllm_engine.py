"""vLLM's own scheduler and runners: the published fault is found by search, and only where it is."""

import importlib.util
from importlib.metadata import version

import pytest
import torch

from fuzz.campaign import Budget, Report, fuzz, scenarios
from fuzz.engine import EngineRun
from fuzz.findings import Finding
from fuzz.mix import for_subjects
from fuzz.start import run, start
from fuzz.traffic import broken_invariant
from fuzz.verdict import Verdict
from fuzz.world import World
from impl.config import Subject
from impl.loading import load

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None or version("vllm").split("+")[0] != "0.33.0",
        reason="vLLM 0.33.0 is not installed here; `tox -e vllm` makes an environment that has it",
    ),
    pytest.mark.filterwarnings("ignore"),
]

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def v1() -> Subject:
    return load("vllm-v1")


@pytest.fixture(scope="module")
def v2() -> Subject:
    return load("vllm-v2")


@pytest.fixture(scope="module")
def stale_rows(v1: Subject) -> Finding:
    """What a search finds on the V1 runner (https://github.com/vllm-project/vllm/pull/55192)."""
    report = fuzz([v1], Budget(max_scenarios=700), seed=1, device=CPU)
    (finding,) = unexplained(report)
    return finding


def unexplained(report: Report) -> list[Finding]:
    """Findings but for the zero row that a float16 head normalises to nan (docs/vllm-0.33.md)."""
    return [
        found for found in report.findings if "got nan" not in found.message or "float16" not in repr(found.scenario)
    ]


def test_rows_kept_over_a_preemption_are_found_and_pinned_to_the_runner(stale_rows: Finding) -> None:
    assert stale_rows.contract == "state-is-fresh-at-the-start"
    assert "its pooling state still holds" in stale_rows.message
    assert len(stale_rows.scenario.requests) <= 2
    assert sum(request.prompt_len for request in stale_rows.scenario.requests) <= 12


def test_the_v2_runner_holds_on_the_same_traffic(stale_rows: Finding, v1: Subject, v2: Subject) -> None:
    assert run(stale_rows.scenario, v1, CPU).verdict is Verdict.VIOLATES
    assert run(stale_rows.scenario, v2, CPU).verdict is Verdict.HOLDS


def test_the_v2_runner_holds(v2: Subject) -> None:
    report = fuzz([v2], Budget(max_scenarios=400), seed=1, device=CPU)
    assert unexplained(report) == []
    assert report.comparisons > 2000


def test_the_real_scheduler_keeps_what_the_model_keeps_and_repeats_itself(v2: Subject) -> None:
    checked = 0
    for scenario, _ in zip(scenarios(for_subjects([v2]), 3), range(150), strict=False):
        traces = []
        for _ in range(2):
            engine_run = start(World(scenario, CPU), v2)
            assert isinstance(engine_run, EngineRun)
            judgement = engine_run.all_steps()
            assert judgement.verdict is Verdict.HOLDS or "got nan" in judgement.message, "see `unexplained`"
            traces.append([(step.spans, step.preempted, step.resumed) for step in engine_run.trace])
        assert traces[0] == traces[1]
        assert scenario.traffic is not None
        steps = [spans for spans, _, _ in traces[0]]
        assert broken_invariant(scenario.requests, scenario.traffic, scenario.options, steps) is None
        checked += len(steps)
    assert checked > 400
