"""vLLM's own scheduler and runners: the published fault is found by search, and only where it is."""

import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import Budget, Report, fuzz, scenarios
from fuzz.cli import main
from fuzz.engine import EngineRun
from fuzz.findings import Finding
from fuzz.ledger import shipped
from fuzz.mix import for_subjects
from fuzz.start import run, start
from fuzz.traffic import broken_invariant
from fuzz.verdict import Verdict
from fuzz.world import World
from impl.config import Subject
from impl.loading import load
from oracle.scenario import Arrival, Options, Request, Scenario, Traffic

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
    report = fuzz([v1], Budget(max_scenarios=700), seed=1, device=CPU, ledger=shipped())
    (finding,) = unexplained(report)
    return finding


def unexplained(report: Report) -> list[Finding]:
    """Findings but for the zero row that a float16 head normalises to nan (docs/vllm-0.33.md)."""
    return [found for found in report.findings if not found.known.startswith("engine-zero-row-")]


def test_rows_kept_over_a_preemption_are_found_and_pinned_to_the_runner(stale_rows: Finding) -> None:
    assert stale_rows.contract == "state-is-fresh-at-the-start"
    assert stale_rows.known == "engine-keeps-rows-over-a-preemption"
    assert "its pooling state still holds" in stale_rows.message
    assert len(stale_rows.scenario.requests) <= 2
    assert sum(request.prompt_len for request in stale_rows.scenario.requests) <= 12


def test_the_v2_runner_holds_on_the_same_traffic(stale_rows: Finding, v1: Subject, v2: Subject) -> None:
    assert run(stale_rows.scenario, v1, CPU).verdict is Verdict.VIOLATES
    assert run(stale_rows.scenario, v2, CPU).verdict is Verdict.HOLDS


def test_the_v2_runner_holds(v2: Subject) -> None:
    report = fuzz([v2], Budget(max_scenarios=400), seed=1, device=CPU, ledger=shipped())
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
            harmless = (Verdict.HOLDS, Verdict.REJECTS)
            assert judgement.verdict in harmless or "got nan" in judgement.message, "see `unexplained`"
            traces.append([(step.spans, step.preempted, step.resumed) for step in engine_run.trace])
        assert traces[0] == traces[1]
        assert scenario.traffic is not None
        steps = [spans for spans, _, _ in traces[0]]
        assert broken_invariant(scenario.requests, scenario.traffic, scenario.options, steps) is None
        checked += len(steps)
    assert checked > 400


LATE = {
    "the query first, its documents when it is answered": ([Arrival(), Arrival(), Arrival()], "holds", 3),
    "all at once": ([Arrival(), Arrival(waits=False), Arrival(waits=False)], "holds", 3),
    "a document before its query": ([Arrival(2), Arrival(waits=False), Arrival(2)], "rejects", 0),
    "the client goes before the query is answered": ([Arrival(abort_at=1), Arrival(), Arrival()], "holds", 0),
    "the client goes with a document scored": ([Arrival(), Arrival(), Arrival(4, abort_at=4)], "holds", 2),
    "the client goes with no document sent": ([Arrival(), Arrival(9), Arrival(9, abort_at=9)], "holds", 1),
}
"""Of a query and two documents who comes and goes when, the verdict, and how many are answered."""


@pytest.mark.parametrize("subject", ["v1", "v2"])
@pytest.mark.parametrize("case", LATE)
def test_documents_are_scored(case: str, subject: str, request: pytest.FixtureRequest) -> None:
    arrivals, verdict, answered = LATE[case]
    budget = 9 if case == "all at once" else 2
    requests = (
        Request("a", "token_embed", (1, 2, 3)),
        Request("b", "token_embed", (1, 2, 3), query="a"),
        Request("c", "token_embed", (4, 5, 6), query="a"),
    )
    scenario = Scenario(requests, (), Options(level="engine"), Traffic(tuple(arrivals), token_budget=budget))
    engine_run = start(World(scenario, CPU), request.getfixturevalue(subject))
    assert isinstance(engine_run, EngineRun)
    judgement = engine_run.all_steps()
    assert (judgement.verdict.value, judgement.message) == (verdict, judgement.message if answered == 0 else "")
    assert sum(len(step.outputs) for step in engine_run.trace) == answered


def test_the_nightly_search_finds_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--subject", "vllm-v1", "--subject", "vllm-v2", "--known", "allow", "--max-scenarios", "150"]
    result = CliRunner().invoke(main, ["fuzz", *arguments, "--seed", "1"])
    assert result.exit_code == 0, result.output
