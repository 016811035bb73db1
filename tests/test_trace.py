"""An engine's trace: whole, the same for the same traffic, and readable again."""

from itertools import count
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fuzz.cli import main
from fuzz.start import run
from fuzz.trace import Trace, compared, dumps, trace_from, trace_of, write
from fuzz.traced import TracedStep
from impl.builtin import BUILTIN
from impl.config import Subject
from oracle.scenario import Arrival, Options, Request, Scenario, ScenarioError, Traffic, parse_json
from oracle.scenario import dumps as scenario_text
from tests.fake_engine import FakeEngine, engine_subject

CPU = torch.device("cpu")
REQUESTS = (Request("a", "token_embed", (1,) * 6), Request("b", "token_embed", (1,) * 6))
TRAFFIC = Traffic((Arrival(), Arrival()), token_budget=6, num_blocks=3, block_size=4, long_prefill_token_threshold=3)
SCENARIO = Scenario(REQUESTS, (), Options(level="engine"), TRAFFIC)


class TossesACoin(FakeEngine):
    """Every second one schedules less: what it does depends on more than the traffic."""

    made = count()

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        if next(self.made) % 2:
            self.model.traffic = Traffic((), token_budget=2, num_blocks=3, block_size=4)


class ForgetsToRestart(FakeEngine):
    def restart(self, name: str) -> None:
        self.computed[name] = 0


def traced(engine: Subject | None = None) -> Trace:
    subject = engine or engine_subject()
    return trace_of(SCENARIO, subject.spec, run(SCENARIO, subject, CPU))


def test_a_trace_tells_each_step_by_hand() -> None:
    steps = traced().steps
    assert steps == (
        TracedStep((("a", 0, 3), ("b", 0, 3))),
        TracedStep((("a", 3, 3),), preempted=("b",), finished=("a",)),
        TracedStep((("b", 0, 6),), finished=("b",)),
        TracedStep(),
    )


def test_the_same_traffic_gives_the_same_file_and_it_reads_back(tmp_path: Path) -> None:
    first, second = (traced() for _ in range(2))
    assert dumps(first) == dumps(second)
    assert dumps(first).count('{"batch"') == 3, "a step a line"
    write(tmp_path / "trace.json", first)
    assert (tmp_path / "trace.json").read_text() == dumps(first)
    assert trace_from(parse_json((tmp_path / "trace.json").read_bytes())) == first


def test_a_trace_ends_with_the_step_that_fell() -> None:
    kept = traced(engine_subject(ForgetsToRestart))
    assert kept.verdict == "violates"
    assert "its pooling state still holds 3 rows" in kept.message
    assert kept.steps[-1] == TracedStep((("b", 0, 6),))


def test_an_engine_that_does_something_else_the_second_time_is_told() -> None:
    first, second = (traced(engine_subject(TossesACoin)) for _ in range(2))
    assert compared(first, first) == "the same trace: 4 steps"
    assert compared(first, second) == "another trace: step 0 was a 0+3, b 0+3; now it is a 0+2"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def load(spec: str, sync_budget: int | None = None) -> Subject:
        return engine_subject()

    monkeypatch.setattr("fuzz.replay.load", load)
    (tmp_path / "scenario.json").write_text(scenario_text(SCENARIO))
    return tmp_path


def test_replay_writes_a_trace_and_runs_it_again(files: Path) -> None:
    trace = str(files / "trace.json")
    done = CliRunner().invoke(main, ["replay", str(files / "scenario.json"), "--subject", "x", "--trace", trace])
    assert done.exit_code == 0, done.output
    assert f"trace: {trace}" in done.output.replace("\n", "")
    again = CliRunner().invoke(main, ["replay", trace])
    assert again.exit_code == 0, again.output
    assert "the same trace: 4 steps" in again.output


def test_what_has_no_trace_is_refused(files: Path) -> None:
    def refused(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["replay", *arguments, "--trace", str(files / "trace.json")])
        assert done.exit_code == 2, done.output
        return done.output

    assert "name one --subject" in refused(str(files / "scenario.json"), "--subject", "x", "--subject", "y")
    damaged = dumps(traced()).replace('"version": 1', '"version": 7', 1)
    (files / "newer.json").write_text(damaged)
    assert "the trace has version 7" in refused(str(files / "newer.json"))


def test_a_scenario_of_steps_has_no_trace(files: Path) -> None:
    plain = Scenario(REQUESTS, ())
    with pytest.raises(Exception, match="only an engine has a trace"):
        trace_of(plain, "x", run(plain, BUILTIN["sliced"], CPU))
    damaged = dumps(traced()).replace('"kind": "trace",', '"kind": "trace", "x": 1,')
    (files / "odd.json").write_text(damaged)
    with pytest.raises(ScenarioError, match="unknown field `x`"):
        trace_from(parse_json((files / "odd.json").read_bytes()))
