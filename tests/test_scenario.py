"""Scenarios survive JSON, and what can't be is refused with the path of the offending field."""

import json
import pickle
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings

from fuzz.campaign import scenarios as campaign_scenarios
from fuzz.mix import Mix, for_subjects
from fuzz.strategies import scenarios
from impl.builtin import BUILTIN
from oracle.scenario import Scenario, ScenarioError, dumps, loads, problems

VALID: dict[str, Any] = {
    "version": 1,
    "requests": [
        {"name": "a", "task": "token_embed", "prompt_token_ids": [1, 2, 3]},
        {"name": "b", "task": "embed", "prompt_token_ids": [1, 2]},
    ],
    "steps": [{"scheduled": [["a", 2], ["b", 2]]}, {"scheduled": [["a", 1]]}],
    "options": {},
}


def changed(path: str, value: Any) -> str:
    """The valid scenario with one field replaced."""
    data = json.loads(json.dumps(VALID))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = data
    for part in parents:
        place = place[part]
    place[last] = value
    return json.dumps(data)


def test_the_valid_scenario_is_read() -> None:
    scenario = loads(json.dumps(VALID))
    assert [request.prompt_len for request in scenario.requests] == [3, 2]
    assert scenario.steps[0].scheduled == (("a", 2), ("b", 2))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(scenarios(Mix(levels=("method", "pooler"), rows=("group", "step"), p_padding=0.1, p_nonfinite=0.2)))
def test_json_round_trips_and_the_generator_makes_only_possible_scenarios(scenario: Scenario) -> None:
    assert loads(dumps(scenario)) == scenario
    assert list(problems(scenario)) == []
    carried = pickle.loads(pickle.dumps(scenario))
    assert carried == scenario
    # Files are named by what is written, so the same must be written in another process.
    assert dumps(carried) == dumps(scenario)


def test_campaigns_draw_only_possible_scenarios() -> None:
    # Those of every part, over many mixes: one in five hundred asked for more columns than it had.
    mix = for_subjects([BUILTIN["packed"]])
    for seed in (1, 2):
        for scenario in islice(campaign_scenarios(mix, seed), 1500):
            assert list(problems(scenario)) == []


def test_json_keeps_a_step_on_one_line() -> None:
    assert '{"scheduled": [["a", 2], ["b", 2]]}' in dumps(loads(json.dumps(VALID)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "version 2 at `$.version`, but this poolproof reads version 1"),
        ("requests.0.name", "b", "two requests are called 'b' - at `$.requests[1].name`"),
        ("requests.0.task", "encode", "Invalid enum value 'encode' - at `$.requests[0].task`"),
        ("requests.0.prompt_token_ids", [], "length >= 1 - at `$.requests[0].prompt_token_ids`"),
        ("requests.0.prompt_token_ids", [-1], ">= 0 - at `$.requests[0].prompt_token_ids[0]`"),
        ("requests.0.color", "red", "unknown field `color` - at `$.requests[0]`"),
        ("requests.0.num_cached_tokens", 3, "3 of 3 prompt tokens are cached"),
        ("requests.0.num_cached_tokens", 1, "not ALL - at `$.requests[0].num_cached_tokens`"),
        ("requests.0.nan_at", 3, "past the prompt's 3 tokens - at `$.requests[0].nan_at`"),
        ("requests.0.returned_token_ids", [4], "column 4 is past the hidden size 4"),
        ("requests.1.dimensions", 5, "5 dimensions are not from 1 to the embedding's 4"),
        ("steps.0.scheduled.0.1", 0, "Expected `int` >= 1 - at `$.steps[0].scheduled[0][1]`"),
        ("steps.0.scheduled.0.1", 4, "request 'a' has 3 tokens left, not 4 - at `$.steps[0].scheduled[0]`"),
        ("steps.0.scheduled.1.0", "a", "scheduled twice in one step - at `$.steps[0].scheduled[1]`"),
        ("steps.0.scheduled.1.0", "z", "there is no request 'z' - at `$.steps[0].scheduled[1]`"),
        ("steps.1.preempted", ["z"], "there is no request 'z' - at `$.steps[1].preempted`"),
        ("steps.1.aborted", ["a"], "request 'a' has already left - at `$.steps[1].scheduled[0]`"),
        ("steps.1.preempted", ["b"], "request 'b' has already left - at `$.steps[1].preempted`"),
        ("steps.1.empty_group_at", 2, "the batch has only 1 requests - at `$.steps[1].empty_group_at`"),
        ("requests.0.chunk_size", 2, "late chunking is for level `pooler` and under ALL only"),
        ("requests.0.task", "embed&token_classify", "under ALL and without chunked prefill - at `$.requests[0].task`"),
        ("options.enable_chunked_prefill", False, "but chunked prefill is off - at `$.steps[0].scheduled[0]`"),
        ("options.dtype", "int8", "Invalid enum value 'int8' - at `$.options.dtype`"),
        ("options.hidden_size", 0, ">= 1 - at `$.options.hidden_size`"),
        ("options.colour", 1, "unknown field `colour` - at `$.options`"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        loads(changed(path, value))
    assert message in str(refused.value)


def test_malformed_input_is_for_methods_only() -> None:
    with pytest.raises(ScenarioError, match="level `method` only"):
        loads(changed("options", {"malformed": "gap", "level": "pooler"}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"requests": []}', b"\xff\xfe"])
def test_damaged_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(ScenarioError):
        loads(text)
