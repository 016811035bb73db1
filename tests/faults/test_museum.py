"""Each known failure shows on a release that has it, and does not on one that hasn't."""

import json

import pytest
import torch

from fuzz.ledger import Known, shown, shows
from fuzz.start import run
from fuzz.verdict import Verdict
from fuzz.world import as_called
from impl.config import Subject
from oracle.contracts import all_contracts
from oracle.device.named import named
from oracle.scenario import from_builtins
from tests.faults.exhibits import ON_SHOW, Beyond, FalseAlarm, beyond, false_alarms, faults, with_and_without
from tests.releases import release
from tests.zoo import ZOO

pytestmark = pytest.mark.releases
ENTRIES = [pytest.param(entry, id=entry.name) for entry in faults()]
CONTRACTS = {contract.name for contract in all_contracts()}


def broken(entry: Known, subject: Subject) -> list[bool | None]:
    """For each witness whether it shows the failure; None where the subject can't be asked."""
    with torch.inference_mode():
        seen = [(witness, shown(witness, subject, named(entry.device))) for witness in entry.witnesses]
    for _, judgement in seen:
        assert judgement is None or judgement.verdict is not Verdict.UNKNOWN, judgement.message
    return [None if judgement is None else shows(witness, judgement) for witness, judgement in seen]


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_release_that_has_it_shows_it(entry: Known) -> None:
    having, _ = with_and_without(entry)
    if not having:
        pytest.skip(f"none of {', '.join(ON_SHOW)} has it; `tox -e museum` shows all releases")
    for version in having:
        assert all(broken(entry, release(version))), version


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_other_release_shows_it(entry: Known) -> None:
    _, without = with_and_without(entry)
    if not without:
        pytest.skip("every release has it")
    for version in without:
        assert not any(broken(entry, release(version))), version


@pytest.mark.parametrize("alarm", [pytest.param(alarm, id=alarm.id) for alarm in false_alarms()])
def test_a_false_alarm_stays_silent(alarm: FalseAlarm) -> None:
    scenario = from_builtins(json.loads(bytes(alarm.scenario)))
    for version in alarm.releases:
        subject = release(version)
        judgement = run(as_called(subject, scenario), subject, torch.device("cpu"))
        assert judgement.verdict in (Verdict.HOLDS, Verdict.REJECTS), judgement.message


def test_every_entry_names_contracts_that_there_are() -> None:
    for entry in faults():
        assert {witness.contract for witness in entry.witnesses} <= CONTRACTS


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.id) for fault in beyond()])
def test_what_is_not_shown_has_a_reason_and_its_kin_is_in_the_zoo(fault: Beyond) -> None:
    assert fault.url.startswith("https://")
    if fault.kin:
        assert fault.kin in {bad.name for bad in ZOO}
    if fault.reason in ("older", "unreleased"):
        assert fault.kin, "the kind can be shown on a pooler of our own"
