"""One generator, three draws: they agree on what is possible."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.check import MIXED_SMALL
from fuzz.draws import Draw, SeededDraw, exhaust
from fuzz.generator import generate
from fuzz.mix import ALL_SMALL, Mix, for_subjects, swarm
from fuzz.strategies import HypothesisDraw, scenarios
from impl.builtin import BUILTIN
from oracle.scenario import Scenario

SMALL = replace(ALL_SMALL, max_requests=2, p_reorder=0, p_no_request=0.3, p_pause=0.4)


def everything(mix: Mix) -> set[Scenario]:
    return set(exhaust(lambda draw: generate(draw, mix)))


def test_exhausting_takes_each_choice_in_turn() -> None:
    def pairs(draw: Draw) -> tuple[int, bool, str]:
        return draw.integer(1, 2), draw.chance(0.5), draw.choice("xy")

    taken = list(exhaust(pairs))
    assert len(taken) == len(set(taken)) == 8


def test_a_chance_of_nought_or_one_is_no_choice() -> None:
    assert list(exhaust(lambda draw: (draw.chance(0), draw.chance(1)))) == [(False, True)]


def test_the_seeded_draw_reaches_exactly_what_the_exhaustive_one_does() -> None:
    possible = everything(SMALL)
    reached: set[Scenario] = set()
    for seed in range(200_000):  # the rarest needs some 40,000
        reached.add(generate(SeededDraw(seed), SMALL))
        if len(reached) >= len(possible):
            break
    assert reached == possible
    assert len(possible) == 49


def reached_by_hypothesis(mix: Mix, max_examples: int) -> set[Scenario]:
    reached: set[Scenario] = set()

    @settings(max_examples=max_examples, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def reach(data: st.DataObject) -> None:
        reached.add(generate(HypothesisDraw(data.draw), mix))

    reach()
    return reached


def test_hypothesis_reaches_exactly_what_the_exhaustive_draw_does() -> None:
    mix = replace(SMALL, max_requests=1, p_async=0.5)
    assert reached_by_hypothesis(mix, 600) == everything(mix)


def test_hypothesis_reaches_nothing_else_in_a_wider_scope() -> None:
    reached = reached_by_hypothesis(SMALL, 600)
    assert reached <= everything(SMALL)
    assert len(reached) > 10


def test_small_scopes_hold_every_arrangement() -> None:
    # Three requests of two kinds are in 2^3 arrangements of groups.
    tasks = {tuple(request.task for request in scenario.requests) for scenario in everything(MIXED_SMALL)}
    assert len(tasks) == 8


def test_scenario_number_i_depends_on_its_seed_alone() -> None:
    mix = for_subjects(BUILTIN.values())
    assert [generate(SeededDraw(i), mix) for i in range(20)] == [generate(SeededDraw(i), mix) for i in range(20)]


def test_swarm_switches_features_off_and_on() -> None:
    mix = for_subjects(BUILTIN.values())
    mixes = [swarm(mix, SeededDraw(seed)) for seed in range(200)]
    for feature in ("p_async", "p_preempt", "p_float", "p_padding", "p_nonfinite"):
        rates = {getattr(drawn, feature) for drawn in mixes}
        assert 0.0 in rates
        assert max(rates) >= 0.3


@settings(max_examples=50, derandomize=True, deadline=None)
@given(scenarios(replace(SMALL, min_requests=1, max_requests=1)))
def test_the_strategy_keeps_to_the_mix(scenario: Scenario) -> None:
    assert len(scenario.requests) == 1
    assert scenario.options.level == "method"
