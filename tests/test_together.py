"""Pairs of features: which came up, and which are still to come."""

from collections import Counter

import pytest
import torch

from fuzz.campaign import Budget, fuzz, scenarios
from fuzz.features import FLOOR
from fuzz.mix import for_subjects
from fuzz.together import MOST_TOLD, Together, note, note_scenario, num_pairs, to_come, told
from impl.builtin import BUILTIN
from oracle.scenario import Scenario

CPU = torch.device("cpu")


def drawn(count: int, first: int = 0) -> list[Scenario]:
    mix = for_subjects([BUILTIN["hostsplit"]])
    return [scenario for scenario, _ in zip(scenarios(mix, 1, first), range(count), strict=False)]


def test_pairs_are_of_one_scenario() -> None:
    together: Together = {}
    note(together, dict.fromkeys("abc", "abc"))
    note(together, dict.fromkeys("cd", "cd"))
    assert num_pairs(together) == 4
    assert "d" not in together["a"]


def test_what_is_to_come_is_what_more_scenarios_have() -> None:
    together: Together = {}
    for scenario in drawn(100):
        note_scenario(together, scenario)
    before = num_pairs(together)
    more = drawn(300, 100)
    missing = to_come(together, more)
    assert missing
    for scenario in more:
        note_scenario(together, scenario)
    assert num_pairs(together) == before + len(missing)
    assert not to_come(together, more)


@pytest.mark.parametrize(
    ("named", "ending"),
    [
        ({}, "10 more scenarios would bring no other"),
        ({("a", "d"): 2, ("b", "d"): 3}, "10 more scenarios would bring: b + d, a + d"),
        ({("x", str(place)): 1 for place in range(8)}, "x + 4, and 3 others"),
    ],
)
def test_a_few_are_named_the_most_frequent_first(named: dict[tuple[str, str], int], ending: str) -> None:
    assert told({}, Counter(named), 10).endswith(ending)


def test_a_campaign_tells_what_it_has_not_covered() -> None:
    report = fuzz([BUILTIN["sliced"]], Budget(max_scenarios=FLOOR), 1, CPU)
    (said,) = report.notes
    assert said.startswith(
        f"{num_pairs(report.together):,} pairs of features came up; 1,000 more scenarios would bring: "
    )
    pairs = said.partition("bring: ")[2].rpartition(", and")[0].split(", ")
    assert len(pairs) == MOST_TOLD
    for pair in pairs:
        one, other = pair.split(" + ")
        assert other not in report.together.get(one, set())


def test_a_short_campaign_tells_nothing_of_it() -> None:
    assert fuzz([BUILTIN["sliced"]], Budget(max_scenarios=FLOOR - 1), 1, CPU).notes == []
