"""Shrinking: to a small scenario that fails in the same way, whatever the start."""

import time

from fuzz.campaign import scenarios
from fuzz.mix import for_subjects
from fuzz.shrink import candidates, shrink
from impl.builtin import BUILTIN
from oracle.scenario import Arrival, Options, Request, Scenario, Traffic, problems

MIX = for_subjects(BUILTIN.values())


def some(count: int) -> list[Scenario]:
    return [scenario for scenario, _ in zip(scenarios(MIX, 5), range(count), strict=False)]


def test_a_candidate_is_never_the_scenario_itself() -> None:
    # Or shrinking would go on for ever.
    for scenario in some(200):
        assert all(candidate != scenario for candidate in candidates(scenario))


def test_what_always_fails_shrinks_to_nothing() -> None:
    for scenario in some(40):
        smallest = shrink(scenario, lambda candidate: True, max_time_s=20).scenario
        assert smallest.requests == ()
        assert smallest.steps == ()


def two_chunks_beside_another(scenario: Scenario) -> bool:
    """Some request is scheduled twice, once of them beside another request."""
    names = [name for step in scenario.steps for name, _ in step.scheduled]
    shared = {name for step in scenario.steps if len(step.scheduled) > 1 for name, _ in step.scheduled}
    return any(names.count(name) > 1 for name in shared)


def test_a_cause_is_laid_bare() -> None:
    starts = [scenario for scenario in some(600) if two_chunks_beside_another(scenario)][:15]
    assert len(starts) == 15
    for scenario in starts:
        smallest = shrink(scenario, two_chunks_beside_another, max_time_s=20).scenario
        assert list(problems(smallest)) == []
        assert [request.name for request in smallest.requests] == ["a", "b"]
        assert sorted(request.prompt_len for request in smallest.requests) == [1, 2]
        assert [len(step.scheduled) for step in smallest.steps] in ([2, 1], [1, 2])


def test_what_reaches_an_engine_moves_to_its_beginning() -> None:
    """As if a reset hit a request under way, that computes a token a step, after another arrived."""

    def reset_while_under_way(scenario: Scenario) -> bool:
        traffic = scenario.traffic
        if traffic is None or len(scenario.requests) < 2 or not traffic.cache_resets:
            return False
        (first, second), reset = traffic.arrivals, traffic.cache_resets[-1]
        return first.at < second.at and first.at < reset < first.at + scenario.requests[0].prompt_len

    requests = tuple(Request(name, "token_embed", (1,) * 9) for name in "ab")
    traffic = Traffic((Arrival(at=3), Arrival(at=7)), cache_resets=(5, 9))
    start = Scenario(requests, (), Options(level="engine"), traffic)
    assert reset_while_under_way(start)
    smallest = shrink(start, reset_while_under_way, max_time_s=20).scenario
    assert smallest.traffic is not None
    assert [arrival.at for arrival in smallest.traffic.arrivals] == [0, 1]
    assert smallest.traffic.cache_resets == (1,)
    assert [request.prompt_len for request in smallest.requests] == [2, 1]


def test_shrinking_stops_when_its_time_is_up() -> None:
    def slow(candidate: Scenario) -> bool:
        time.sleep(0.02)
        return False

    large = max(some(200), key=lambda scenario: len(scenario.requests))
    assert shrink(large, slow, max_time_s=0.1).tried <= 6
