"""What is told, drawn and exported of a finding on an engine, whose steps are its own."""

import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import Report
from fuzz.cli import main
from fuzz.explain import explain
from fuzz.export import as_issue, as_pytest
from fuzz.findings import ExportError, Failure, Finding, finding_from
from fuzz.reports.as_html import as_html, walk
from fuzz.reports.as_markdown import plain_drawing, told
from fuzz.reports.svg import draw_steps
from fuzz.start import run
from impl.config import Subject
from impl.engine import EngineStep, Span
from oracle.scenario import Arrival, Options, Request, Scenario, Traffic
from oracle.scenario import dumps as scenario_text
from tests.fake_engine import FakeEngine, engine_subject

CPU = torch.device("cpu")
REQUESTS = tuple(Request(name, "token_embed", (1,) * 3, use_activation=False) for name in ("a", "b"))


class SwapsAnswers(FakeEngine):
    def answers(
        self, spans: Sequence[Span], outputs: Sequence[torch.Tensor | None]
    ) -> Mapping[str, Sequence[torch.Tensor | None]]:
        answered = dict(super().answers(spans, outputs))
        return dict(zip(answered, reversed(answered.values()), strict=True))


class PoolsOneRowEarly(FakeEngine):
    def pool(self, spans: Sequence[Span]) -> Sequence[torch.Tensor | None]:
        right = self.pooler
        self.pooler = lambda rows, metadata: right(rows.roll(1, 0), metadata)  # type: ignore[assignment]
        try:
            return super().pool(spans)
        finally:
            self.pooler = right


class KeepsStateOverPreemption(FakeEngine):
    def restart(self, name: str) -> None:
        self.computed[name] = 0


class FailsOnAbort(FakeEngine):
    def abort(self, name: str) -> None:
        raise KeyError(name)


class EndsItsProcess(FakeEngine):
    def step(self) -> EngineStep:
        os._exit(7)


def finding(engine: type[FakeEngine], traffic: Traffic | None = None) -> Finding:
    traffic = traffic or Traffic((Arrival(), Arrival()), token_budget=8)
    scenario = Scenario(REQUESTS, (), Options(level="engine", hidden_size=4), traffic)
    subject = engine_subject(engine)
    return Failure(scenario, subject.name, "vllm-v1", run(scenario, subject, CPU)).finding()


PREEMPTED = Traffic((Arrival(), Arrival(at=1)), token_budget=2, num_blocks=4, block_size=2, cache_resets=(2,))


def drawn(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize(
    ("engine", "traffic", "picture"),
    [
        (
            SwapsAnswers,
            None,
            """
 step 0 a arrives; b arrives; [a0 a1 a2] [b0 b1 b2] a answered b answered
                                          ^^ ^^ ^^
>step 1 nobody
""",
        ),
        (
            PoolsOneRowEarly,
            None,
            """
>step 0 a arrives; b arrives; [a0 a1 a2] [b0 b1 b2]
                               ^^ ^^            ^^
""",
        ),
        (
            KeepsStateOverPreemption,
            PREEMPTED,
            """
 step 0 a arrives; [a0 a1)
 step 1 b arrives; (a2] [b0) a answered
>step 2 reset the prefix cache; b starts over; [b0 b1)
""",
        ),
        (
            FailsOnAbort,
            Traffic((Arrival(), Arrival(at=1, abort_at=2)), token_budget=2),
            """
 step 0 a arrives; [a0 a1)
 step 1 b arrives; (a2] [b0) a answered
>step 2 abort b; nobody
""",
        ),
    ],
)
def test_the_steps_that_the_engine_made_are_drawn(
    engine: type[FakeEngine], traffic: Traffic | None, picture: str
) -> None:
    lines = drawn(plain_drawing(finding(engine, traffic)))
    assert lines[: len(drawn(picture))] == drawn(picture)


def test_who_is_preempted_and_starts_over_is_drawn() -> None:
    class LosesAnswers(FakeEngine):
        def answers(self, *arguments: object) -> Mapping[str, Sequence[torch.Tensor | None]]:
            super().answers(*arguments)  # type: ignore[arg-type]
            return {}

    lines = drawn(plain_drawing(finding(LosesAnswers, PREEMPTED)))
    assert lines[2:4] == [" step 2 reset the prefix cache; preempt b; b starts over; [b0 b1)", " step 3 (b2]"]


def test_rows_that_went_astray_behind_the_pooler_are_named_by_origin() -> None:
    text = told(finding(SwapsAnswers))
    assert text.startswith("Request a got 3 rows of request b in step 1.\n")
    assert "got b0  b1  b2" in text
    assert "observed: after the engine handed it out, request a got" in text


def test_an_engine_raises_for_itself() -> None:
    text = told(finding(FailsOnAbort, Traffic((Arrival(), Arrival(abort_at=1)), token_budget=2)))
    assert text.startswith("The engine raises an error in step 1, on traffic that clients can bring.")


def test_a_page_has_the_engine_steps_as_a_picture_and_in_words() -> None:
    shown = explain(finding(KeepsStateOverPreemption, PREEMPTED))
    svg = ElementTree.fromstring(draw_steps(shown))
    texts = ["".join(node.itertext()) for node in svg.iter("text")]
    assert texts[-5:] == ["step 2", "reset the prefix cache", "b starts over", "b0", "b1"]
    assert list(walk(shown))[1:] == [
        "b arrives; a gets 1 row after 2 before and finishes; b gets 1 row and goes on later; a is answered",
        "reset the prefix cache; b starts over; b gets 2 rows and goes on later; here the contract is broken",
    ]
    assert as_html(Report(["vllm-v1"], 1, findings=[finding(SwapsAnswers)])).count('class="q1 wrong"') == 6


def test_no_box_is_narrower_than_its_label() -> None:
    svg = ElementTree.fromstring(draw_steps(explain(finding(KeepsStateOverPreemption, PREEMPTED))))
    for group in svg.iter("g"):
        box, label = group.find("rect"), group.find("text")
        if box is not None and label is not None:
            assert float(box.attrib["width"]) >= 8 * len(label.text or "")


def test_a_finding_file_keeps_the_steps() -> None:
    found = finding(KeepsStateOverPreemption, PREEMPTED)
    assert finding_from(json.loads(json.dumps(found.to_file())), None) == found
    assert len(found.trace) == 3


def test_an_engine_is_no_standalone_test_and_the_way_out_is_told() -> None:
    with pytest.raises(ExportError, match=r"scheduler, batch and runner.*`--as issue` tells the traffic"):
        as_pytest(finding(SwapsAnswers))


Loader = Callable[[type[FakeEngine]], None]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loader:
    def use(engine: type[FakeEngine]) -> None:
        def load(spec: str, sync_budget: int | None = None) -> Subject:
            return engine_subject(engine)

        monkeypatch.setattr("fuzz.replay.load", load)

    return use


def test_an_issue_has_what_it_takes_to_run_it_again(tmp_path: Path, loaded: Loader) -> None:
    issue = as_issue(finding(KeepsStateOverPreemption, PREEMPTED))
    assert ">step 2 reset the prefix cache; b starts over; [b0 b1)" in issue
    assert "- request b: token_embed (ALL), 3 tokens, use_activation False, at 1" in issue
    assert "poolproof replay scenario.json --subject vllm-v1\n" in issue
    assert "- torch " in issue
    scenario = tmp_path / "scenario.json"
    scenario.write_text(issue.partition("```json\n")[2].partition("```")[0])
    for engine, exit_code in ((KeepsStateOverPreemption, 1), (FakeEngine, 0)):
        loaded(engine)
        done = CliRunner().invoke(main, ["replay", str(scenario), "--subject", "x"])
        assert done.exit_code == exit_code, done.output


def test_an_engine_that_ends_its_process_has_a_trace_without_steps(tmp_path: Path, loaded: Loader) -> None:
    loaded(EndsItsProcess)
    (tmp_path / "scenario.json").write_text(scenario_text(finding(SwapsAnswers).scenario))
    trace = tmp_path / "trace.json"
    done = CliRunner().invoke(
        main, ["replay", str(tmp_path / "scenario.json"), "--subject", "x", "--trace", str(trace)]
    )
    assert done.exit_code == 1, done.output
    assert "The engine ended its process" in done.output
    assert json.loads(trace.read_text())["steps"] == []
