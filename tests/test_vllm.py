"""Real vLLM, where it is installed: what it is known for is found, and nothing else."""

import importlib.util
from importlib.metadata import version

import pytest
import torch

from fuzz.campaign import Budget, Report, fuzz
from fuzz.check import check_one
from impl.config import Subject
from impl.loading import load

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
    messages = {finding.contract: finding.message for finding in report.findings}
    assert "got nan at [0], but should get 0" in messages["values"]
    assert "when the caller rewrote its own array" in messages["cursor-is-a-snapshot"]
    assert "malformed" in messages["reject-or-be-right"]
    assert all(len(finding.scenario.requests) == 1 for finding in report.findings)


def test_a_search_finds_nothing_else(subject: Subject) -> None:
    report = fuzz([subject], Budget(max_scenarios=4000), seed=1, device=torch.device("cpu"))
    assert found(report) <= KNOWN
