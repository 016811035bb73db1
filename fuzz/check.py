"""The pre-merge check: deterministic, exhaustive where the scope is small, fixed scenarios beyond it.

`fuzz.check_each` runs it for several subjects, each in a process of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Final

import torch

from fuzz.campaign import Budget, Campaign, Listener, Report, Started, scenarios
from fuzz.draws import Draw, SeededDraw, exhaust
from fuzz.exhaustive import Coverage, Scope, steps_from, walk
from fuzz.findings import read
from fuzz.generator import generate
from fuzz.ladder import ladders
from fuzz.ledger import Known
from fuzz.mix import ALL_SMALL, Mix, for_subjects
from fuzz.start import run
from fuzz.verdict import Judgement, Verdict
from fuzz.world import as_called
from impl.config import Subject
from oracle import contracts
from oracle.device.ops import NAME as SIMULATED
from oracle.scenario import Options, Request, Scenario, Step

SCOPE: Final = Scope()
SAMPLED_PATHS: Final = 200
FIXED_SEED: Final = 20261
FIXED_SCENARIOS: Final = 600

MIXED_SMALL: Final = replace(
    ALL_SMALL, pooling_types=("ALL", "LAST"), max_tokens=1, max_requests=3, min_requests=3,
    p_mixed_tasks=1, p_pause=0,
)  # fmt: skip
"""Three one-token requests of token and sequence tasks in every arrangement: subgroups at every place."""


def check_one(
    subject: Subject,
    device: torch.device,
    directory: Path | None,
    listener: Listener,
    fixed: Sequence[Scenario] = (),
    ledger: Sequence[Known] = (),
) -> Report:
    """Judge one subject, on the scenarios of `fixed` besides those that ship, and tell what the ledger knows.

    Raises:
        SubjectError: a subject's factory can't make what it says it supports.
    """
    listener(Started("check", [subject.name], None, str(device), Budget()))
    campaign = Campaign([subject], device, directory, listener)
    try:
        with torch.inference_mode():
            campaign.open_ledger(ledger)
            _check(campaign, subject, fixed)
    except KeyboardInterrupt:
        campaign.report.interrupted = True
        campaign.doubt("the check was interrupted")
    return campaign.finish()


def _check(campaign: Campaign, subject: Subject, fixed: Sequence[Scenario]) -> None:
    for scenario in (*regressions(), *fixed):
        campaign.judge(as_called(subject, scenario))
    if campaign.device.type != "cpu":
        for ladder in ladders(subject):
            campaign.judge(ladder.scenario)
    if "ALL" in subject.supports and "method" in subject.levels:
        _walk(campaign, subject)
        _sample_paths(campaign, subject)
    for mix in (*small_scopes(subject), *part_scopes(subject)):
        counted = 0
        for scenario in exhaust(partial(generate, mix=mix)):
            counted += bool(campaign.judge(scenario))
            campaign.tell("small scopes")
        what = " and ".join(mix.pooling_types)
        what += " behind a filter of BOS and EOS" * (mix.p_filter > 0) + " behind a dense layer" * (mix.p_dense > 0)
        what += " with late interaction" * (mix.p_late > 0) + " with late chunking" * (mix.p_late_chunking > 0)
        what += " under each activation that a model may name" * (mix.p_models_activation > 0)
        what += " with BGE-M3's task" * (mix.p_dense_and_sparse > 0)
        campaign.report.notes.append(f"{subject.name}: {what}, each of {counted:,} scenarios in a small scope")
    mix = for_subjects([subject], campaign.device.type == SIMULATED)
    for scenario in islice(scenarios(mix, FIXED_SEED), FIXED_SCENARIOS):
        campaign.judge(scenario)
        campaign.tell("fixed scenarios")


def _walk(campaign: Campaign, subject: Subject) -> None:
    seen = Counter[str]()

    def failed(scenario: Scenario, judgement: Judgement) -> None:
        seen[judgement.verdict.value] += 1
        if run(scenario, subject, campaign.device).verdict is Verdict.HOLDS:
            judgement = _kept_elsewhere(judgement, "a whole path is right, but a step from its pooling states is not")
        campaign.settle(scenario, subject, replace(judgement, comparisons=0))
        campaign.tell(f"ALL, {seen.total():,} transitions failed")

    def tell(coverage: Coverage) -> None:
        campaign.report.scenarios += 1
        campaign.tell(f"ALL, {coverage.transitions:,} transitions")

    coverage = walk(subject, _all_options(subject), SCOPE, campaign.device, failed, tell)
    campaign.report.comparisons += coverage.comparisons
    every = "every" if _chunks(subject) else "every unchunked"
    note = (
        f"{subject.name}: ALL, {every} schedule of up to {SCOPE.max_requests} requests with up to "
        f"{SCOPE.max_tokens} tokens: {coverage.schedules:,} schedules with batch order, covered as "
        f"{coverage.states:,} states and {coverage.transitions:,} transitions"
    )
    campaign.report.notes.append(note + (f", {seen.total():,} of which failed" if seen else ""))


def _sample_paths(campaign: Campaign, subject: Subject) -> None:
    """Take whole paths, to see that a subject keeps nothing outside the pooling states.

    If the walk found nothing but a whole path fails, the difference lies in what the walk resets and a
    path does not: something kept elsewhere.
    """
    clean = not campaign.report.findings
    draw = SeededDraw(FIXED_SEED)
    for _ in range(SAMPLED_PATHS):
        scenario = path(draw, SCOPE, _all_options(subject))
        judgements = campaign.judge(scenario)
        for judgement in judgements:
            if clean and judgement.verdict.is_finding:
                told = _kept_elsewhere(judgement, "each step is right from its pooling states, but a whole path is not")
                campaign.settle(scenario, subject, told)
    campaign.report.notes.append(f"{subject.name}: ALL, {SAMPLED_PATHS} whole paths of that scope as a sample")


def _kept_elsewhere(judgement: Judgement, why: str) -> Judgement:
    return replace(
        judgement,
        verdict=Verdict.VIOLATES,
        contract="state-determines-behaviour",
        message=str(contracts.state_determines_behaviour(f"{why}: {judgement.message}")),
    )


def _chunks(subject: Subject) -> bool:
    return "chunked-token-tasks" not in subject.lacks


def _all_options(subject: Subject) -> Options:
    return Options(tok_pooling_type="ALL", enable_chunked_prefill=_chunks(subject), rows=subject.rows[0])


def path(draw: Draw, scope: Scope, options: Options) -> Scenario:
    """A random batch of the scope on a random schedule, from start to end."""
    lengths = draw.choice(list(scope.lengths()))
    requests = tuple(Request(chr(97 + place), "token_embed", (1,) * n) for place, n in enumerate(lengths))
    left = {request.name: request.prompt_len for request in requests}
    steps: list[Step] = []
    while any(left.values()):
        steps.append(draw.choice(list(steps_from(left, options.enable_chunked_prefill))))
        for name, count in steps[-1].scheduled:
            left[name] -= count
    return Scenario(requests, tuple(steps), options)


def small_scopes(subject: Subject) -> Iterator[Mix]:
    """Mixes small enough to be exhausted, for what the subject supports besides ALL."""
    if "method" not in subject.levels:
        return
    unchunked = 0 if _chunks(subject) else 1
    for pooling_type in ("CLS", "LAST", "MEAN"):
        if pooling_type in subject.supports:
            yield replace(ALL_SMALL, pooling_types=(pooling_type,), rows=subject.rows[:1])
    if "STEP" in subject.supports:
        # Which tokens are tagged multiplies the schedules, so two requests get one token each.
        step = replace(ALL_SMALL, pooling_types=("STEP",), rows=subject.rows[:1], p_unchunked=unchunked)
        yield replace(step, max_requests=1, max_tokens=3)
        yield replace(step, max_tokens=1)
    if {"ALL", "LAST"} <= subject.supports:
        yield replace(MIXED_SMALL, rows=subject.rows, p_unchunked=unchunked)


def part_scopes(subject: Subject) -> Iterator[Mix]:
    """The same for the parts that a whole layer has besides heads and dispatch."""
    if "pooler" not in subject.levels:
        return
    scope = replace(ALL_SMALL, levels=("pooler",), rows=subject.rows[:1], lacks=subject.lacks, min_requests=1)
    if "ALL" in subject.supports and "bos-eos-filter" not in subject.lacks:
        yield replace(scope, max_requests=1, max_tokens=3, p_filter=1)
    if "LAST" in subject.supports and "dense-head" not in subject.lacks:
        yield replace(scope, pooling_types=("LAST",), max_tokens=1, p_second_task=1, p_params=0.5, p_dense=1)
    if "ALL" in subject.supports and "late-interaction" not in subject.lacks:
        yield replace(scope, min_requests=3, max_requests=3, max_tokens=1, p_abort=0.5, p_pause=0, p_late=1)
    if "models-activation" not in subject.lacks:
        labels = replace(scope, hidden_sizes=(4, 1), max_requests=1, max_tokens=1, p_second_task=1)
        for kind in ("ALL", "LAST"):
            if kind in subject.supports:
                yield replace(labels, pooling_types=(kind,), p_models_activation=1)
    if "ALL" in subject.supports and "late-chunking" not in subject.lacks:
        yield replace(scope, max_requests=1, max_tokens=4, p_whole=1, p_late_chunking=1)
    if {"ALL", "LAST"} <= subject.supports and "dense-and-sparse" not in subject.lacks:
        whole = replace(scope, pooling_types=("ALL", "LAST"), max_tokens=2, p_unchunked=1, p_whole=1, p_pause=0)
        yield replace(whole, max_requests=1, p_mixed_tasks=0, p_filter=0.5, p_dense_and_sparse=1)


def regressions() -> Iterator[Scenario]:
    """The fixed scenarios that ship with the package."""
    for entry in sorted(files("fuzz").joinpath("regressions").iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".json"):
            yield read(Path(str(entry)))[0]
