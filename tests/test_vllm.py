"""Real vLLM, where it is installed: what it is known for is found, and nothing else."""

import importlib.util
from collections import Counter
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import pytest
import torch

from fuzz.campaign import Budget, Report, fuzz, scenarios
from fuzz.check import check_one, regressions
from fuzz.export import as_pytest
from fuzz.findings import Finding, read
from fuzz.mix import for_subjects
from fuzz.start import run
from impl.config import Subject
from impl.loading import load
from tests.test_export import passes

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None or version("vllm").split("+")[0] != "0.33.0",
        reason="vLLM 0.33.0 is not installed here; `tox -e vllm` makes an environment that has it",
    ),
    # What vLLM warns of while it is imported is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

KNOWN = {
    ("cursor-is-a-snapshot", ""),
    ("reject-or-be-right", "MEAN"),
    ("values", ""),
}
"""Contract and pooling type of each finding that docs/vllm-0.33.md explains."""


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load("vllm")


def found(report: Report) -> set[tuple[str, str]]:
    assert report.verdict == "violates"
    assert not report.doubts
    return {(finding.contract, finding.pooling_type) for finding in report.findings}


def test_the_check_finds_what_is_known_and_nothing_else(subject: Subject) -> None:
    report = check_one(subject, torch.device("cpu"), None, lambda event: None)
    assert any("465,977 schedules" in note for note in report.notes)
    assert found(report) == KNOWN
    messages = [(finding.contract, finding.message) for finding in report.findings]
    assert any(contract == "values" and "got nan at [0], but should get 0" in told for contract, told in messages)
    assert "when the caller rewrote its own array" in dict(messages)["cursor-is-a-snapshot"]
    assert "malformed" in dict(messages)["reject-or-be-right"]
    others = [own.scenario.options.head.activation_fn for own in report.findings if own.contract == "values"]
    assert sorted(map(str, others)) == ["None", "Sigmoid", "Sigmoid"]
    assert all(len(finding.scenario.requests) == 1 for finding in report.findings)


def test_a_search_finds_nothing_else(subject: Subject) -> None:
    report = fuzz([subject], Budget(max_scenarios=4000), seed=1, device=torch.device("cpu"))
    assert found(report) <= KNOWN


def test_an_exported_test_is_red_for_what_is_known_and_green_elsewhere() -> None:
    served = [scenario for scenario in regressions() if scenario.options.rows == "group"]
    red = {
        scenario
        for scenario in served
        if not passes(as_pytest(Finding("vllm", "values", "violates", "", "wrong", scenario, spec="vllm")))
    }
    known = ("heads-zero-row-in-float16", "mean-rows-missing")
    assert red == {read(Path(f"fuzz/regressions/{name}.json"))[0] for name in known}


def test_on_its_own_the_pooling_layer_gives_the_same_verdicts_as_with_the_whole_of_vllm(subject: Subject) -> None:
    import vllm

    alone = load(f"vllm@{Path(vllm.__file__).parent}")
    assert (alone.supports, alone.rows, alone.levels, alone.lacks) == (
        subject.supports, subject.rows, subject.levels, subject.lacks
    )  # fmt: skip
    assert alone.api.PoolingMetadata is not subject.api.PoolingMetadata
    verdicts: Counter[str] = Counter()
    for scenario in islice(scenarios(for_subjects([subject]), 20261), 500):
        device = torch.device("cpu")
        assert run(scenario, alone, device) == run(scenario, subject, device)
        verdicts[run(scenario, alone, device).verdict.value] += 1
    assert {"holds", "rejects", "violates"} <= set(verdicts)
