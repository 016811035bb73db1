"""Who tests the tester: each contract has bad poolers or callers that it catches, by generic scenarios alone."""

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
import torch

from fuzz import campaign, check
from fuzz.campaign import scenarios
from fuzz.exhaustive import Scope
from fuzz.mix import for_subjects
from fuzz.start import run
from fuzz.verdict import Judgement, Verdict
from impl.builtin import BUILTIN
from impl.config import Subject
from impl.loading import load
from oracle.contracts import BEFORE, all_contracts, first_broken
from tests.flock import FLOCK
from tests.zoo import CALLERS, ZOO
from tests.zoo.callers import good_caller
from tests.zoo.heads import Apart
from tests.zoo.joints import Chunked, Chunking, Cut, Filtering, Last, Layer, Means, Steps
from tests.zoo.register import BadCaller, BadPooler, layer_of, subject_of

CPU = torch.device("cpu")
SEED = 1
ENOUGH = 3000
"""Scenarios within which the fuzzer should come upon any of the mistakes."""
OF_ENGINES = {
    "batch-belongs-together", "every-request-finishes", "finishes-once", "nothing-left-behind",
    "step-output-is-a-snapshot",
}  # fmt: skip
"""Contracts that only an engine can break; `test_engine` has the bad engines."""
OF_DEVICES = {"sync-budget", "waits-do-not-grow"}
"""Contracts that no pooler breaks on a CPU; `zoo_sim` has those that break them on the simulated device."""
OF_PROCESSES = {"comes-back", "process-survives", "same-answer-again"}
"""Contracts that show only where a subject has a process of its own; `test_workers` has those that break them."""
BETWEEN_RUNS = "state-determines-behaviour"
"""The one contract that no single run can show; `check` does."""

JOINTS = (
    subject_of(Cut, ("ALL", "STEP", "CLS", "LAST", "MEAN")),
    subject_of(Chunked, ("ALL",)),
    subject_of(Steps, ("STEP",)),
    subject_of(Last, ("LAST",)),
    subject_of(Means, ("MEAN",)),
    layer_of(Layer, "layer", ("ALL", "STEP", "CLS", "LAST", "MEAN")),
    layer_of(Apart, "apart", ("ALL", "LAST"), ("models-activation",)),
    layer_of(Filtering, "filtering", ("ALL", "LAST"), ("bos-eos-filter", "late-chunking", "dense-and-sparse")),
    layer_of(Chunking, "chunking", ("ALL",), ("late-chunking",)),
)
"""What the members of the zoo are made of; each is right."""


def judgements(subject: Subject, count: int) -> Iterator[Judgement]:
    """What becomes of the subject on generic scenarios."""
    with torch.inference_mode():
        for scenario in islice(scenarios(for_subjects([subject]), SEED), count):
            judgement = run(scenario, subject, CPU)
            assert judgement.verdict is not Verdict.UNKNOWN, judgement.message
            yield judgement


def _each(members: Sequence[BadPooler | BadCaller]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bad", members, ids=lambda bad: bad.name)


@_each([bad for bad in ZOO if BETWEEN_RUNS not in bad.contracts])
def test_a_bad_pooler_is_caught_by_the_contract_it_breaks(bad: BadPooler) -> None:
    found = next((judgement for judgement in judgements(bad.subject, ENOUGH) if judgement.verdict.is_finding), None)
    assert found is not None, f"{ENOUGH} scenarios were silent on {bad.name}: {bad.how}"
    assert found.contract in bad.contracts, found.message


@_each([bad for bad in ZOO if BETWEEN_RUNS in bad.contracts])
def test_what_is_kept_outside_the_states_is_caught_by_whole_paths(
    bad: BadPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SCOPE", Scope(max_requests=2))
    monkeypatch.setattr(campaign, "SHRINK_TIME_S", 0.0)
    monkeypatch.setattr(check, "FIXED_SCENARIOS", 0)
    report = check.check_one(bad.subject, CPU, None, lambda event: None)
    assert BETWEEN_RUNS in {finding.contract for finding in report.findings}, report


@_each(CALLERS)
def test_a_bad_caller_is_caught_by_the_contract_it_breaks(bad: BadCaller) -> None:
    handed = good_caller()
    bad.spoil(handed)
    broken = first_broken(BEFORE, handed.call())
    assert broken is not None, f"the contracts were silent on {bad.name}: {bad.how}"
    assert broken.contract == bad.contract, broken.message


def test_the_caller_is_good_before_it_is_spoiled() -> None:
    assert first_broken(BEFORE, good_caller().call()) is None


FLOCKED = [load(f"tests.flock:{name}") for name in FLOCK]


@pytest.mark.parametrize("subject", [*BUILTIN.values(), *JOINTS, *FLOCKED], ids=lambda subject: subject.name)
def test_a_right_pooler_is_left_alone(subject: Subject) -> None:
    seen = list(judgements(subject, 300))
    assert [judgement for judgement in seen if judgement.verdict.is_finding] == []
    assert sum(judgement.comparisons for judgement in seen) > 300


def test_each_contract_has_a_member_that_it_should_catch() -> None:
    expected = {contract for bad in ZOO for contract in bad.contracts} | {bad.contract for bad in CALLERS}
    assert expected | OF_ENGINES | OF_DEVICES | OF_PROCESSES == {contract.name for contract in all_contracts()}


def test_each_member_says_how_it_came_about() -> None:
    members: list[BadPooler | BadCaller] = [*ZOO, *CALLERS]
    assert [member.name for member in members if not member.how.endswith(".")] == []
    assert len({member.name for member in members}) == len(members)
