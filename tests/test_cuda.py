"""On a CUDA device: what the simulated one promises, and what only hardware can show. `pytest -m cuda`."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch

from device.audit import audit
from device.named import named
from device.record import Record
from fuzz.audit import measure
from fuzz.campaign import scenarios
from fuzz.mix import Mix, for_subjects
from fuzz.runner import Run, run
from fuzz.verdict import Judgement
from fuzz.world import World, supports
from impl.builtin import BUILTIN
from impl.config import Subject
from oracle.scenario import DtypeName, Scenario
from tests.zoo_sim import MEMBERS, Member

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"),
]
SCENARIOS = 150
DTYPES: tuple[DtypeName, ...] = ("float32", "float16", "bfloat16")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    """The device; a fault that came late is the test's own."""
    yield named("cuda")
    torch.cuda.synchronize()
    assert torch.ones(1, device="cuda").item() == 1


def drawn(dtype: DtypeName, count: int = SCENARIOS) -> list[Scenario]:
    from dataclasses import replace

    mix = replace(for_subjects(BUILTIN.values()), dtypes=(dtype,))
    return list(islice(scenarios(mix, 20261), count))


def judge_all(some: list[Scenario], device: torch.device) -> list[Judgement]:
    judgements = [
        run(scenario, subject, device)
        for scenario in some
        for subject in BUILTIN.values()
        if supports(subject, scenario)
    ]
    torch.cuda.synchronize()
    return judgements


def faults(judgements: list[Judgement]) -> list[Judgement]:
    return [judgement for judgement in judgements if judgement.verdict.value not in ("holds", "rejects")]
