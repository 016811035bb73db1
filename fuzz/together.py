"""Which features came up in one scenario, pair by pair, and which pairs a campaign has yet to see."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Final

from fuzz.features import features, finer
from oracle.scenario import Scenario

MOST_TOLD: Final = 5
"""Pairs that are named."""

Together = dict[str, set[str]]
"""By feature, those that came up with it, itself among them."""


def note(together: Together, others: Mapping[str, Iterable[str]]) -> None:
    """Add what came up with each feature."""
    for name, beside in others.items():
        together.setdefault(name, set()).update(beside)


def note_scenario(together: Together, scenario: Scenario) -> set[str]:
    """Add the features of one scenario, and hand back those that are counted singly too."""
    single = features(scenario)
    found = single | finer(scenario)
    note(together, dict.fromkeys(found, found))
    return single


def num_pairs(together: Together) -> int:
    """How many pairs of different features there are."""
    return sum(len(beside) - 1 for beside in together.values()) // 2


def to_come(together: Together, more: Iterable[Scenario]) -> Counter[tuple[str, str]]:
    """How many of more scenarios have a pair that did not come up.

    What can't come up is in none of them, so nobody has to know what that is.
    """
    missing = Counter[tuple[str, str]]()
    for scenario in more:
        for one, other in combinations(sorted(features(scenario) | finer(scenario)), 2):
            if other not in together.get(one, ()):
                missing[one, other] += 1
    return missing


def told(together: Together, missing: Counter[tuple[str, str]], num_more: int) -> str:
    """One sentence on both."""
    came = f"{num_pairs(together):,} pairs of features came up"
    if not missing:
        return f"{came}; {num_more:,} more scenarios would bring no other"
    named = [f"{one} + {other}" for (one, other), _ in sorted(missing.items(), key=lambda own: (-own[1], own[0]))]
    rest = f", and {len(named) - MOST_TOLD} others" if len(named) > MOST_TOLD else ""
    return f"{came}; {num_more:,} more scenarios would bring: {', '.join(named[:MOST_TOLD])}{rest}"
