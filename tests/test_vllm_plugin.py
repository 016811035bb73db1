"""The plugin for vLLM: nothing unless asked for, and then every real pooler is held to the contracts."""

import importlib.util
import logging
import subprocess
import sys
from importlib.metadata import version
from itertools import islice

import pytest
import torch

from fuzz.campaign import Budget, fuzz, scenarios
from fuzz.mix import for_subjects
from fuzz.start import run
from fuzz.verdict import Judgement, Verdict
from fuzz.vllm_plugin import VARIABLE, register
from impl.config import Subject
from impl.loading import load
from oracle.scenario import Options, Request, Scenario, Step

CPU = torch.device("cpu")
TWO = Scenario(
    (Request("a", "token_embed", (1, 1)), Request("b", "token_embed", (1, 1, 1))),
    (Step((("a", 2), ("b", 1))), Step((("b", 2),))),
    Options(level="pooler"),
)

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or version("vllm").split("+")[0] != "0.33.0",
    reason="vLLM 0.33.0 is not installed here; `tox -e vllm` makes an environment that has it",
)


def test_without_the_variable_nothing_is_imported() -> None:
    script = (
        "import sys; from fuzz.vllm_plugin import register; register();"
        "print([name for name in ('torch', 'vllm', 'oracle', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ValueError, match="POOLPROOF_GUARD is 'yes'; say raise or report, or leave it out"):
        register()


@pytest.fixture
def subject() -> Subject:
    return load("vllm")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Takes the plugin's mark off vLLM again."""
    from vllm.model_executor.layers.pooler.seqwise import SequencePooler
    from vllm.model_executor.layers.pooler.tokwise import TokenPooler

    for kind in (SequencePooler, TokenPooler):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    return monkeypatch


def break_vllm(plugin: pytest.MonkeyPatch) -> None:
    """AllPool hands each request rows of another."""
    from vllm.model_executor.layers.pooler.tokwise.methods import AllPool

    right = AllPool.forward
    plugin.setattr(AllPool, "forward", lambda self, rows, metadata: right(self, rows.roll(1, 0), metadata))


def guarded(subject: Subject, scenario: Scenario, plugin: pytest.MonkeyPatch, how: str) -> Judgement:
    plugin.setenv(VARIABLE, how)
    register()
    register()  # vLLM may load its plugins more than once
    return run(scenario, subject, CPU)


@needs_vllm
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_pooler_ends_the_step(subject: Subject, plugin: pytest.MonkeyPatch) -> None:
    break_vllm(plugin)
    assert run(TWO, subject, CPU).verdict is Verdict.VIOLATES
    judgement = guarded(subject, TWO, plugin, "raise")
    assert judgement.verdict is Verdict.CRASHES
    assert "ContractError: values: request #0 got in row 0 row 2 of this step" in judgement.message


@needs_vllm
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_pooler_is_reported_once_and_goes_on(
    subject: Subject, plugin: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_vllm(plugin)
    plugin.setattr(logging.getLogger("vllm"), "propagate", True)
    assert guarded(subject, TWO, plugin, "report").verdict is Verdict.VIOLATES
    told = [record.getMessage() for record in caplog.records if record.name == "vllm.poolproof"]
    assert len(told) == 1
    assert told[0].startswith("AllPool breaks a contract: values: request #0 got")


@needs_vllm
@pytest.mark.filterwarnings("ignore")
def test_vllm_itself_is_judged_as_without_it(subject: Subject, plugin: pytest.MonkeyPatch) -> None:
    chosen = [
        scenario
        for scenario in islice(scenarios(for_subjects([subject]), 20261), 600)
        if scenario.options.level == "pooler"
    ]
    unguarded = {scenario: run(scenario, subject, CPU) for scenario in chosen}
    seen = {scenario: guarded(subject, scenario, plugin, "raise") for scenario in chosen}
    assert {"ALL", "STEP", "CLS", "LAST", "MEAN"} <= {
        scenario.pooling_type(request) for scenario in chosen for request in scenario.requests
    }
    for scenario in chosen:
        # Padding that the caller should have cut off may be refused, and is by the guard.
        refused = seen[scenario].verdict is Verdict.REJECTS and "cut off padding first" in seen[scenario].message
        assert refused or seen[scenario].verdict is unguarded[scenario].verdict, (scenario, seen[scenario].message)


@needs_vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runner", ["vllm-v1", "vllm-v2"])
def test_inside_a_runner_it_tells_of_a_wrong_pooler_and_of_no_right_one(
    runner: str, plugin: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.setattr(logging.getLogger("vllm"), "propagate", True)
    plugin.setenv(VARIABLE, "report")
    register()
    subject = load(runner)
    # The harness itself holds the caller to its contracts, before the pooler is called.
    fuzz([subject], Budget(max_scenarios=150), 1, CPU)
    assert [record for record in caplog.records if record.name == "vllm.poolproof"] == []
    break_vllm(plugin)
    fuzz([subject], Budget(max_scenarios=50), 1, CPU)
    told = {record.getMessage() for record in caplog.records if record.name == "vllm.poolproof"}
    assert any(line.startswith("AllPool breaks a contract: values") for line in told)
