"""The ways to guide the search are what they are called, and are compared as the page says."""

import math
from collections.abc import Iterable
from itertools import combinations, islice
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fuzz.campaign import STRETCH
from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.mix import Mix, swarm
from impl.builtin import BUILTIN
from oracle.scenario import Scenario
from tests.zoo import ZOO
from tests.zoo.guidance import Compared, Trial, Tried, compared, hardest, main, trial, verdict
from tests.zoo.ways import WAYS, Arcs, Over, Retold, least_seen, rates

HOSTSPLIT = BUILTIN["hostsplit"]


def drawn(way: str, count: int) -> list[Scenario]:
    """The first scenarios of a way."""
    seen: list[Scenario] = []

    def judge(scenario: Scenario) -> None:
        seen.append(scenario)
        if len(seen) == count:
            raise Over

    with pytest.raises(Over):
        WAYS[way][0](Mix(), 5, count, judge)
    return seen


def test_the_command_writes_a_page_with_each_way_and_member(tmp_path: Path) -> None:
    page = tmp_path / "guidance.md"
    done = CliRunner().invoke(main, ["--output", str(page), "--members", "2", "--seeds", "1", "--most", "12"])
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert [name for name in (*WAYS, *hardest(2)) if f"| {name} |" not in text] == []
    assert "$" not in text


def test_the_hardest_are_of_the_zoo_in_the_order_of_its_page() -> None:
    assert hardest(2) == hardest(10)[:2]
    assert set(hardest(10)) <= {bad.name for bad in ZOO}
    assert len(set(hardest(10))) == 10


@pytest.mark.parametrize("way", WAYS)
def test_a_way_that_can_not_find_is_scored_as_not_found(way: str) -> None:
    tried = trial(way, HOSTSPLIT, range(8), 12)
    seeds, most = 8 // WAYS[way][1], 12 // WAYS[way][2]
    assert (tried.cases, tried.spent) == ((None,) * seeds, seeds * most)
    assert tried.told == f"> {most} (0 of {seeds})"


@pytest.mark.parametrize("way", WAYS)
def test_each_way_finds_what_is_easy_to_find(way: str) -> None:
    easy = next(bad.subject for bad in ZOO if bad.name == "last-chunk-lost")
    tried = trial(way, easy, [0], 1200)
    assert tried.found == 1
    assert tried.cases == (tried.spent,)


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_says_what_a_way_draws(way: str) -> None:
    assert drawn(way, 20) == drawn(way, 20)


def test_steering_begins_as_a_campaign_does_and_parts_from_it() -> None:
    steered, seeded = drawn("steered", 20 * STRETCH), drawn("seeded", 20 * STRETCH)
    assert steered[:STRETCH] == seeded[:STRETCH]
    assert steered != seeded


def test_steering_brings_more_pairs_of_features() -> None:
    def pairs(mixes: Iterable[Mix]) -> int:
        return len({pair for mix in mixes for pair in combinations(rates(mix, Mix()), 2)})

    steered = [mix for _, mix in islice(least_seen(Mix(), 5), 16)]
    seeded = [swarm(Mix(), SeededDraw(5 * 1_000_003 + stretch)) for stretch in range(16)]
    assert pairs(steered) > pairs(seeded)


def test_choices_are_told_again_and_made_anew_where_they_end() -> None:
    first = Retold(1, [])
    scenario = generate(first, swarm(Mix(), first))
    again = Retold(2, first.taken)
    assert generate(again, swarm(Mix(), again)) == scenario
    partly = Retold(2, first.taken[:9])
    generate(partly, swarm(Mix(), partly))
    assert partly.taken[:9] == first.taken[:9]
    assert partly.taken[9:] != first.taken[9:]


def test_arcs_tell_another_way_through_the_subject_and_how_often_it_was_taken() -> None:
    def of(scenarios: list[Scenario]) -> set[tuple[object, int]]:
        own = Trial(HOSTSPLIT, most=len(scenarios) + 1)
        with torch.inference_mode(), Arcs() as arcs:
            for scenario in scenarios:
                own.judge(scenario)
        return arcs.found

    empty, full = Scenario((), (), drawn("seeded", 1)[0].options), next(own for own in drawn("seeded", 9) if own.steps)
    assert of([full]) == of([full])
    assert {arc for arc, _ in of([full])} > {arc for arc, _ in of([empty])}
    assert {arc for arc, _ in of([full] * 4)} >= {arc for arc, _ in of([full])}
    assert of([full] * 4) != of([full])


def _tried(way: str, *spent: int) -> list[Tried]:
    return [Tried(way, f"member {place}", 3000, (each,), each, 1.0) for place, each in enumerate(spent)]


@pytest.mark.parametrize(
    ("spent", "takes"),
    [((20, 18, 22), "fewer"), ((1800, 2200, 2000), "more"), ((20, 2000, 210), "no difference seen")],
)
def test_a_way_is_judged_by_how_the_members_scatter(spent: tuple[int, ...], takes: str) -> None:
    own = compared([*_tried("seeded", 200, 200, 200), *_tried("coverage", *spent)], "coverage")
    assert own.takes == takes
    assert math.exp(own.log_ratio) == pytest.approx(math.prod(each / 200 for each in spent) ** (1 / 3))


def test_a_single_member_shows_no_difference() -> None:
    own = compared([*_tried("seeded", 200), *_tried("steered", 2)], "steered")
    assert own.takes == "no difference seen"


def test_the_verdict_names_what_wins_and_whether_it_does_so_in_time() -> None:
    quick, slow, lost = Compared(-1, 0.1, 1.5), Compared(-1, 0.1, 9.0), Compared(1, 0.1, 1.0)
    assert verdict({"steered": lost}) == "No way takes clearly fewer scenarios than the seeded draws do."
    assert verdict({"steered": lost, "coverage": quick}) == "`coverage` takes fewer scenarios and less time."
    assert verdict({"target": slow}) == "`target` takes fewer scenarios, though not less time."
