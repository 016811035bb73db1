"""A finding told: the sentence that opens it, and the drawing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fuzz.blame import Blame, Origin, WrongRow
from fuzz.campaign import scenarios
from fuzz.drawing import draw
from fuzz.explain import Explanation, explain, facts, headline
from fuzz.findings import Finding, from_failure, read
from fuzz.mix import for_subjects
from fuzz.start import run
from impl.builtin import BUILTIN
from impl.config import Outputs, PoolerConfig, Subject
from impl.hostsplit import HostSplit
from oracle.rows import STALE
from oracle.scenario import Options, Request, Scenario, Step, loads

CPU = torch.device("cpu")

TWO_STEPS = Scenario(
    requests=(Request("a", "token_embed", (1, 1, 1)), Request("b", "token_embed", (1, 1))),
    steps=(Step((("a", 2), ("b", 1))), Step((("a", 1), ("b", 1)))),
)

Change = Callable[[list[torch.Tensor | None], torch.Tensor], Outputs]


def finding(change: Change, scenario: Scenario = TWO_STEPS) -> Finding:
    """What is found where `change(outputs, hidden_states)` spoils the results of a right pooler."""

    def build(config: PoolerConfig, _: object) -> Any:
        right = HostSplit(config).method("ALL")
        return lambda hidden_states, metadata: change(right(hidden_states, metadata), hidden_states)

    subject = Subject("spoilt", build, supports=frozenset({"ALL"}))
    judgement = run(scenario, subject, CPU)
    assert judgement.verdict.is_finding
    return from_failure(scenario, subject, judgement, CPU, max_shrink_s=0)[0]


def on_last(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]) -> Change:
    """Spoils the last request's result, once there is one."""
    return lambda outputs, rows: [*outputs[:-1], None if outputs[-1] is None else change(outputs[-1], rows)]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (on_last(lambda due, rows: rows), "got 1 row of request a in step 1"),
        (
            on_last(lambda due, rows: torch.cat([due[:1], rows])),
            "got 1 row of request a in step 1: its slice starts 1 row early",
        ),
        (on_last(lambda due, rows: due[1:]), "lost 1 of its 2 rows in step 1: its chunk of step 0 is missing"),
        (on_last(lambda due, rows: due[:1]), "lost 1 of its 2 rows in step 1: its slice ends 1 row early"),
        (on_last(lambda due, rows: due[:0]), "got none of its 2 rows in step 1"),
        (on_last(lambda due, rows: due.flip(0)), "got its rows in the wrong order in step 1"),
        (on_last(lambda due, rows: due[[0, 0]]), "got some of its rows in place of others in step 1"),
        (on_last(lambda due, rows: due[[0, 1, 1]]), "got 1 row too many in step 1: its slice ends 1 row late"),
        (on_last(lambda due, rows: due + 0.5), "got wrong numbers in 2 of its 2 rows in step 1"),
        (on_last(lambda due, rows: torch.full_like(due, torch.nan)), "got 2 rows of padding in step 1"),
        (on_last(lambda due, rows: torch.full_like(due, STALE)), "got 2 rows that had been overwritten in step 1"),
    ],
)
def test_the_sentence_says_what_happened_to_the_rows(change: Change, what: str) -> None:
    assert headline(finding(change)) == f"Request b {what}."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (on_last(lambda due, rows: None), "In step 1, request b is finished, but got None."),
        (lambda outputs, rows: outputs[:1], "In step 0, got 1 outputs for 2 requests (a, b)."),
        (
            lambda outputs, rows: outputs[9:][0],
            "The pooler raises an error in step 0, on input that an engine can produce.",
        ),
    ],
)
def test_the_sentence_where_no_row_is_wrong(change: Change, sentence: str) -> None:
    assert headline(finding(change)) == sentence


@pytest.mark.parametrize(
    ("options", "padding", "given"),
    [
        ({"malformed": "gap"}, 0, "a gap between the rows of two requests"),
        ({"malformed": "short-rows"}, 0, "fewer rows than the cursor names"),
        ({"malformed": "missing-scheduled-counts"}, 0, "a cursor without num_scheduled_tokens_cpu"),
        ({"malformed": "counts-on-device"}, 0, "a cursor whose num_scheduled_tokens_cpu is not on the host"),
        ({}, 2, "rows of padding after the requests' own"),
        ({}, 0, "part of a prompt of which it needs the whole"),
    ],
)
def test_the_sentence_says_what_a_pooler_may_refuse(options: dict[str, Any], padding: int, given: str) -> None:
    scenario = Scenario((Request("a", "embed", (1,)),), (Step((("a", 1),), padding=padding),), Options(**options))
    told = headline(Finding("s", "reject-or-be-right", "violates", "", "wrong", scenario, step=0))
    assert told == f"Given {given} in step 0, the pooler raises no error, yet its answer is wrong."


def test_the_drawing_shows_the_steps_and_the_wrong_rows() -> None:
    told = explain(finding(on_last(lambda due, rows: rows)))
    assert [line.plain for line in draw(told, 80)] == [
        " step 0 [a0 a1) [b0)",
        ">step 1 (a2] (b1]",
        "         ^^",
        "",
        "wrong rows of request b's result:",
        "row 0",
        "due b0",
        "got a2",
    ]


def test_everything_in_a_step_is_drawn() -> None:
    scenario = loads(
        """{"version": 1, "requests": [
            {"name": "a", "task": "token_embed", "prompt_token_ids": [1, 1]},
            {"name": "b", "task": "embed", "prompt_token_ids": [1, 1, 1], "num_cached_tokens": 1},
            {"name": "c1", "task": "token_embed", "prompt_token_ids": [1]}],
           "steps": [{"scheduled": [["a", 1]], "empty_group_at": 1},
                     {"scheduled": [["a", 2], ["b", 2]], "preempted": ["a"], "aborted": ["c1"], "padding": 2},
                     {"scheduled": []}]}"""
    )
    told = explain(Finding("s", "values", "violates", "", "step 1: wrong", scenario, step=1))
    assert [line.plain for line in draw(told, 80)] == [
        " step 0 [a0) |empty subgroup|",
        ">step 1 preempt a; abort c1; [a0 a1] | (b1 b2] -- --",
        " step 2 nobody",
    ]


@pytest.mark.parametrize("width", [12, 40, 100])
def test_no_drawing_is_wider_than_the_terminal(width: int) -> None:
    wide = Request("名前" * 9, "token_embed", (1,) * 300)
    fixed = Scenario((wide,), (Step(((wide.name, 300),)),))
    some = [scenario for scenario, _ in zip(scenarios(for_subjects(BUILTIN.values()), 3), range(300), strict=False)]
    some += [read(path)[0] for path in Path("fuzz/regressions").glob("*.json")]
    for scenario in [fixed, *some]:
        name = scenario.requests[0].name if scenario.requests else ""
        wrong = tuple(WrongRow(row, Origin("token", name, row), Origin("padding")) for row in range(30))
        told = explain(Finding("s", "values", "violates", "", "wrong", scenario, blame=Blame(name, 30, 30, 40, wrong)))
        assert max(line.cell_len for line in draw(told, width)) <= width


def shown(told: Explanation, **options: Any) -> str:
    console = Console(width=80, force_terminal=True, **options)
    with console.capture() as captured:
        for line in draw(told, 80):
            console.print(line)
    return captured.get()


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = explain(finding(on_last(lambda due, rows: rows)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[36m" in shown(told, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in shown(told, color_system="standard")


def test_a_name_from_a_file_can_not_steer_the_terminal() -> None:
    scenario = Scenario((Request("\x1b[2J", "token_embed", (1,)),), (Step((("\x1b[2J", 1),)),))
    told = explain(Finding("s", "values", "violates", "", "wrong", scenario, step=0))
    assert "\x1b" not in "".join(line.plain for line in draw(told, 80))


def test_the_facts_name_rule_reason_and_place() -> None:
    told = dict(facts(explain(finding(on_last(lambda due, rows: due[1:])))))
    assert told["observed"] == "request b's result has 1 row, of which wrong or missing: 2"
    assert told["expected"] == "request b's result has 2 rows: its own, in prompt order"
    assert told["rule"] == "A finished request's output has the shape its prompt and parameters call for."
    assert told["why"].startswith("The number of rows is what late interaction")
    assert told["pooler at"].startswith("tests/test_explain.py:")
    assert "replay" not in told
