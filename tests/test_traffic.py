"""The scheduler model: what it makes of traffic holds for any scheduler, and poolers hold on it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fuzz.draws import SeededDraw
from fuzz.generator import generate
from fuzz.mix import Mix, for_subjects
from fuzz.start import run
from fuzz.traffic import broken_invariant, draw_traffic, played
from fuzz.verdict import Verdict
from impl.builtin import BUILTIN
from impl.engine import Span
from oracle.scenario import Arrival, Options, Request, Scenario, Step, Traffic, problems

MIX = replace(for_subjects([BUILTIN["hostsplit"]]), levels=("method",), p_traffic=1.0, max_tokens=12, p_abort=0.1)


def drawn(mix: Mix, count: int) -> Iterator[tuple[tuple[Request, ...], Traffic, Options]]:
    """Requests, traffic and options, before the model plays them."""
    for seed in range(count):
        draw = SeededDraw(seed)
        scenario = generate(SeededDraw(seed), replace(mix, p_traffic=0))
        if scenario.options.seq_pooling_type == "LAST":
            requests = tuple(
                Request(request.name, request.task, request.prompt_token_ids) for request in scenario.requests
            )
            yield requests, draw_traffic(draw, mix, scenario.options, requests), scenario.options


def spans_of(requests: tuple[Request, ...], steps: list[Step]) -> list[list[Span]]:
    """The steps with the position that each request is computed from."""
    cached = {request.name: request.num_cached_tokens for request in requests}
    reached = dict(cached)
    spans = []
    for step in steps:
        reached.update({name: cached[name] for name in step.preempted})
        spans.append([Span(name, reached[name], count) for name, count in step.scheduled])
        reached.update({span.name: span.start + span.count for span in spans[-1]})
    return spans


def test_the_model_keeps_what_every_scheduler_keeps() -> None:
    preempted = hits = 0
    for requests, traffic, options in drawn(MIX, 1800):
        filled, steps = played(requests, traffic, options)
        assert list(problems(Scenario(filled, tuple(steps), options))) == []
        assert broken_invariant(filled, traffic, options, spans_of(filled, steps)) is None
        preempted += any(step.preempted for step in steps)
        hits += any(request.num_cached_tokens for request in filled)
        if not any(arrival.abort_at for arrival in traffic.arrivals):
            done = [name for step in spans_of(filled, steps) for name in ends(step, filled)]
            assert sorted(done) == sorted(request.name for request in requests), "each request finishes once"
    assert preempted >= 10
    assert hits >= 10


def ends(spans: list[Span], requests: tuple[Request, ...]) -> list[str]:
    lengths = {request.name: request.prompt_len for request in requests}
    return [span.name for span in spans if span.start + span.count == lengths[span.name]]


def test_a_poolers_steps_from_traffic_hold() -> None:
    for seed in range(150):
        scenario = generate(SeededDraw(seed), MIX)
        verdict = run(scenario, BUILTIN["hostsplit"], torch.device("cpu")).verdict
        assert verdict in (Verdict.HOLDS, Verdict.REJECTS)


REQUESTS = (Request("a", "token_embed", (1,) * 6), Request("b", "token_embed", (1,) * 6))
TRAFFIC = Traffic((Arrival(), Arrival()), token_budget=4, max_num_seqs=2, num_blocks=3, block_size=4)


def test_blocks_run_out_by_hand() -> None:
    # Two blocks of four tokens: a takes one, then needs both, and b never gets in before a is done.
    _, steps = played(REQUESTS, TRAFFIC, Options())
    assert [step.scheduled for step in steps] == [(("a", 4),), (("a", 2),), (("b", 4),), (("b", 2),)]


def test_a_preempted_request_starts_over_by_hand() -> None:
    # Three tokens each at most, so both run; a grows into its second block and pushes b out, which is then alone.
    traffic = Traffic(
        (Arrival(), Arrival()), token_budget=6, num_blocks=3, block_size=4, long_prefill_token_threshold=3
    )
    _, steps = played(REQUESTS, traffic, Options())
    assert [step.scheduled for step in steps] == [(("a", 3), ("b", 3)), (("a", 3),), (("b", 6),)]
    assert [step.preempted for step in steps] == [(), ("b",), ()]


def test_the_urgent_come_first_and_the_less_urgent_are_pushed_out() -> None:
    traffic = Traffic((Arrival(0, 1), Arrival(0, 0)), token_budget=6, max_num_seqs=1, priority_policy=True)
    _, steps = played(REQUESTS, traffic, Options())
    assert [step.scheduled for step in steps] == [(("b", 6),), (("a", 6),)]


@pytest.mark.parametrize(
    ("spans", "options", "message"),
    [
        ([[Span("a", 0, 5)]], {}, "more than the budget of 4 tokens"),
        ([[Span("a", 0, 1), Span("b", 0, 1), Span("a", 1, 1)]], {}, "more than 2 requests"),
        ([[Span("a", 4, 3)]], {}, "schedules tokens 4 to 7 of a"),
        ([[Span("a", 0, 2)], [Span("a", 3, 1)]], {}, "goes on with a at 3, not at 2"),
        ([[Span("a", 0, 2)]], {"enable_chunked_prefill": False}, "splits a, but chunked prefill is off"),
        ([[Span("a", 3, 2), Span("b", 3, 2)]], {}, "goes on with a at 3"),
    ],
)
def test_a_scheduler_that_breaks_an_invariant_is_told(
    spans: list[list[Span]], options: dict[str, bool], message: str
) -> None:
    told = broken_invariant(REQUESTS, TRAFFIC, Options(**options), spans)  # type: ignore[arg-type]
    assert told is not None
    assert message in told
