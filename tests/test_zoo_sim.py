"""Each fault that only a device shows is caught on the simulated one, by the contract that is meant for it."""

import pytest
import torch

from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.ladder import ladders
from fuzz.start import run
from fuzz.verdict import Judgement, Verdict
from oracle.device.named import named
from tests.zoo_sim import GROWS, MEMBERS, RIGHT, Member

SCENARIOS = 60
WAITS = [member for member in MEMBERS if member.contract == "sync-budget"]


def judged(member: Member, device: str) -> list[Judgement]:
    with torch.inference_mode():
        return [run(generate(SeededDraw(seed), member.mix), member.subject, named(device)) for seed in range(SCENARIOS)]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.factory.__name__)
def test_a_fault_is_caught_by_its_contract(member: Member) -> None:
    broken = {judgement.contract for judgement in judged(member, "sim") if judgement.verdict.is_finding}
    assert broken == {member.contract}


def test_a_generous_budget_does_not_hide_growth() -> None:
    with torch.inference_mode():
        judgement = run(next(ladders(GROWS.subject)).scenario, GROWS.subject, named("sim"))
    assert judgement.contract == GROWS.contract
    assert judgement.message.startswith("32 reads for 32 requests, 1.0 more with each")


@pytest.mark.parametrize("member", RIGHT, ids=lambda member: member.factory.__name__)
def test_a_right_pooler_is_left_alone(member: Member) -> None:
    assert {judgement.verdict for judgement in judged(member, "sim")} == {Verdict.HOLDS}


@pytest.mark.parametrize("member", WAITS, ids=lambda member: member.factory.__name__)
def test_a_wait_does_not_show_on_a_cpu(member: Member) -> None:
    assert not any(judgement.verdict.is_finding for judgement in judged(member, "cpu"))
