"""What a subject lacks: it is not asked for it, and a campaign draws none of it in vain."""

from dataclasses import replace
from itertools import islice
from typing import get_args

import pytest
import torch

from fuzz.campaign import Budget, fuzz, scenarios
from fuzz.features import FLOOR
from fuzz.machine import chunked_prefill_machine
from fuzz.mix import for_subjects
from fuzz.world import supports
from impl.builtin import BUILTIN
from impl.config import Lack, Subject, SubjectError

WHOLE = BUILTIN["sliced"]


def without(*lacks: Lack) -> Subject:
    return replace(WHOLE, name="lacking", lacks=frozenset(lacks))


def drawn(*subjects: Subject) -> list[bool]:
    """Whether the last of the subjects serves each scenario that a campaign on all of them draws."""
    return [supports(subjects[-1], scenario) for scenario in islice(scenarios(for_subjects(subjects), 1), 400)]


@pytest.mark.parametrize("lack", get_args(Lack))
def test_a_subject_is_spared_what_it_lacks(lack: Lack) -> None:
    served = drawn(WHOLE, without(lack))
    assert any(served)
    assert not all(served)


@pytest.mark.parametrize("lacks", [*((lack,) for lack in get_args(Lack)), get_args(Lack)])
def test_a_campaign_draws_nothing_that_all_its_subjects_lack(lacks: tuple[Lack, ...]) -> None:
    assert all(drawn(without(*lacks)))


def test_a_campaign_is_not_inconclusive_for_want_of_what_its_subject_lacks() -> None:
    report = fuzz([without(*get_args(Lack))], Budget(max_scenarios=FLOOR + 100), seed=1, device=torch.device("cpu"))
    assert (report.verdict, report.doubts) == ("holds", [])


def test_a_subject_without_chunks_has_no_chunked_prefill_machine() -> None:
    with pytest.raises(SubjectError, match="only whole"):
        chunked_prefill_machine(without("chunked-token-tasks"))
