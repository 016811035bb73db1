"""A finding in plain words and as a picture: pure functions from a finding to plain frozen data.

Nothing here prints or knows of a terminal, a page or a tracker; `fuzz.drawing` and the reports do.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from fuzz.blame import Blame, Origin
from fuzz.features import departures
from fuzz.findings import Finding
from fuzz.traced import TracedStep
from oracle.contracts import Contract, named
from oracle.scenario import Scenario, Traffic


@dataclass(frozen=True)
class Run:
    """Rows of one request that lie side by side in a step's hidden states."""

    request: str
    first: int
    """Position of the first row in the prompt."""
    count: int
    opens: bool
    """Whether the prompt begins here, rather than in an earlier step or the prefix cache."""
    closes: bool
    """Whether the prompt ends here, rather than in a later step."""
    group: int
    """Which subgroup of the step it is in: requests of one task side by side."""
    misplaced: frozenset[int]
    """Positions whose rows another request, or another place, wrongly got."""

    def shown(self, most: int) -> list[int]:
        """Positions to draw: all, or of more than `most` the ends and the misplaced ones."""
        positions = range(self.first, self.first + self.count)
        if self.count <= most:
            return list(positions)
        return sorted({positions[0], positions[-1], *sorted(self.misplaced)[: most - 2]})


@dataclass(frozen=True)
class StepPicture:
    """One step's hidden states, row by row."""

    index: int
    events: tuple[str, ...]
    """What happened before it: preemptions, aborts; in an engine also who arrives and who starts over."""
    runs: tuple[Run, ...]
    padding: int
    empty_group_at: int | None
    falls: bool
    """Whether the contract is broken at this step."""
    answered: tuple[str, ...] = ()
    """Whose result an engine handed out after it."""


@dataclass(frozen=True)
class Explanation:
    """All that a report may want to say of a finding, in the order in which it is best told."""

    headline: str
    contract: Contract[object]
    subject: str
    requests: tuple[str, ...]
    steps: tuple[StepPicture, ...]
    options: str
    observed: str
    expected: str
    blame: Blame | None
    """Rows that went astray; None where numbers went wrong, or nothing in a result."""
    place: str
    """File and line of the subject's code, relative where it lies below the working directory."""
    raised: bool
    """Whether `place` is where it raised, rather than where the pooler begins."""
    replay: str
    before: int
    """How many scenarios the process had been through, if it takes that to fail."""
    count: int
    known: str
    """What the ledger calls it and where it is published; empty if it is new."""


def explain(finding: Finding) -> Explanation:
    """Put a finding into words and rows."""
    contract = named(finding.contract)
    observed, expected = _observed_and_expected(finding, contract)
    return Explanation(
        headline=headline(finding),
        contract=contract,
        subject=finding.subject,
        requests=tuple(_describe_requests(finding.scenario)),
        steps=tuple(pictures(finding.scenario, finding.step, finding.blame, finding.trace)),
        options=describe_options(finding.scenario),
        observed=observed,
        expected=expected,
        blame=None if finding.blame is None or _is_arithmetic(finding.blame) else finding.blame,
        place=finding.place,
        raised=finding.verdict == "crashes",
        replay=f"poolproof replay {shlex.quote(finding.file)}" if finding.file else "",
        before=0 if finding.before is None else finding.before.count,
        count=finding.count,
        known=f"{finding.known} {finding.url}".strip(),
    )


def facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Name and text of what is to be said below the drawing; what is not known is left out."""
    contract = explanation.contract
    if explanation.known:
        yield "known as", explanation.known
    yield "observed", explanation.observed
    yield "expected", explanation.expected
    if contract.rule != explanation.expected:
        yield "rule", contract.rule
    yield "why", f"{contract.why[:1].upper()}{contract.why[1:]} Without it: {contract.without}"
    if explanation.place:
        yield "raised at" if explanation.raised else "pooler at", explanation.place
    if explanation.replay and explanation.before:
        yield "replay after the others", explanation.replay
        yield "replay alone", f"{explanation.replay} --alone"
    elif explanation.replay:
        yield "replay", explanation.replay


def headline(finding: Finding) -> str:
    """One sentence in plain words, without the project's vocabulary."""
    where = "" if finding.step is None else f" in step {finding.step}"
    who, given = "The pooler", "input that an engine can produce"
    if finding.scenario.traffic is not None:
        who, given = "The engine", "traffic that clients can bring"
    if finding.verdict == "unstable":
        return _unstable(finding)
    if finding.verdict == "hangs":
        return f"{who} does not come back, on {given}."
    if finding.contract == "process-survives":
        return f"{who} {finding.message}, on {given}."
    if finding.verdict == "crashes":
        return f"{who} raises an error{where}, on {given}."
    if finding.contract == "reject-or-be-right":
        wrong = (
            finding.blame
            and not _is_arithmetic(finding.blame)
            and f"request {finding.blame.request} {_what(finding.blame)}"
        )
        return f"Given {_given(finding)}{where}, the pooler raises no error, yet {wrong or 'its answer is wrong'}."
    blame = finding.blame
    if blame is None or _is_arithmetic(blame):
        said = finding.message.removeprefix(f"step {finding.step}: ")
        return f"In step {finding.step}, {said}." if where else f"{said[:1].upper()}{said[1:]}."
    cause = _cause(blame, list(pictures(finding.scenario, finding.step, None, finding.trace)), finding.step)
    return f"Request {blame.request} {_what(blame)}{where}{': ' + cause if cause else ''}."


def _unstable(finding: Finding) -> str:
    """What is said of a scenario that came out in two ways."""
    if finding.contract == "state-determines-behaviour" and finding.before is not None:
        others = counted(finding.before.count, "other scenario")
        return f"The pooler fails after {others} in the same process, and not alone."
    return "The pooler fails on one and the same input by chance."


def _given(finding: Finding) -> str:
    """What about the input a pooler may refuse."""
    match finding.scenario.options.malformed:
        case "missing-scheduled-counts":
            return "a cursor without num_scheduled_tokens_cpu"
        case "counts-on-device":
            return "a cursor whose num_scheduled_tokens_cpu is not on the host"
        case "gap":
            return "a gap between the rows of two requests"
        case "short-rows":
            return "fewer rows than the cursor names"
    padded = finding.step is not None and any(step.padding for step in finding.scenario.steps[finding.step :][:1])
    return "rows of padding after the requests' own" if padded else "part of a prompt of which it needs the whole"


def _is_arithmetic(blame: Blame) -> bool:
    """Whether the wrong rows are numbers that went wrong rather than rows that went astray."""
    return all(row.due and row.got and (row.due.kind, row.got.kind) == ("computed", "unknown") for row in blame.wrong)


def _what(blame: Blame) -> str:
    """What happened to the request's rows."""
    foreign = Counter(
        row.got.request
        for row in blame.wrong
        if row.got and row.got.kind == "token" and row.got.request != blame.request
    )
    kinds = Counter(row.got.kind for row in blame.wrong if row.got)
    if not blame.num_got:
        return f"got none of its {_rows(blame.num_due)}"
    if foreign:
        return "got " + " and ".join(f"{_rows(number)} of request {name}" for name, number in foreign.items())
    if kinds["overwritten"]:
        return f"got {_rows(kinds['overwritten'])} that had been overwritten"
    if kinds["padding"]:
        return f"got {_rows(kinds['padding'])} of padding"
    if kinds["unknown"]:
        return f"got wrong numbers in {blame.num_wrong} of its {_rows(max(blame.num_due, blame.num_got))}"
    due = {row.due for row in blame.wrong if row.due}
    got = {row.got for row in blame.wrong if row.got}
    if blame.num_got < blame.num_due:
        return f"lost {blame.num_due - blame.num_got} of its {_rows(blame.num_due)}"
    if blame.num_got > blame.num_due:
        return f"got {_rows(blame.num_got - blame.num_due)} too many"
    return "got its rows in the wrong order" if due == got else "got some of its rows in place of others"


def _cause(blame: Blame, steps: Sequence[StepPicture], step: int | None) -> str:
    """The one slip that explains every wrong row, if there is one."""
    if not blame.num_got:
        return ""
    lost = {row.due for row in blame.wrong} - {row.got for row in blame.wrong} - {None}
    place = {
        (run.request, run.first + offset): (picture.index, row)
        for picture in steps
        for row, (run, offset) in enumerate((run, offset) for run in picture.runs for offset in range(run.count))
    }

    def at(origin: Origin | None) -> tuple[int, int] | None:
        return place.get((origin.request, origin.position)) if origin and origin.kind == "token" else None

    if blame.num_got < blame.num_due and len(lost) == blame.num_due - blame.num_got:
        lost_in = {where[0] for where in map(at, lost) if where}
        chunks = [run for picture in steps if {picture.index} == lost_in for run in picture.runs
                  if run.request == blame.request]  # fmt: skip
        if step not in lost_in and chunks and chunks[0].count == len(lost):
            return f"its chunk of step {lost_in.pop()} is missing"
    moved = {
        (got[0] - due[0], got[1] - due[1])
        for due, got in ((at(row.due), at(row.got)) for row in blame.wrong)
        if due and got
    }
    if len(moved) == 1 and (by := moved.pop())[0] == 0:
        return f"its slice starts {_rows(abs(by[1]))} {'early' if by[1] < 0 else 'late'}"
    if blame.num_got > blame.num_due and all(row.row >= blame.num_due for row in blame.wrong):
        return f"its slice ends {_rows(blame.num_got - blame.num_due)} late"
    if blame.num_got < blame.num_due and all(row.row >= blame.num_got for row in blame.wrong):
        return f"its slice ends {_rows(blame.num_due - blame.num_got)} early"
    return ""


def _observed_and_expected(finding: Finding, contract: Contract[object]) -> tuple[str, str]:
    blame = finding.blame
    if blame is None or _is_arithmetic(blame) or finding.scenario.traffic is not None:
        # Of an engine the message says more: whether the pooler was wrong, or what came out after it.
        message = finding.message.removeprefix(f"step {finding.step}: ")
        observed, _, expected = message.partition(", but should ")
        return observed, f"should {expected}" if expected else contract.rule
    of = f"request {blame.request}'s result"
    observed = f"{of} has {_rows(blame.num_got)}, of which wrong or missing: {blame.num_wrong}"
    return observed, f"{of} has {_rows(blame.num_due)}: its own, in prompt order"


@dataclass(frozen=True)
class _Taken:
    """A step that was taken, whoever planned it."""

    events: tuple[str, ...]
    batch: Sequence[tuple[str, int, int]]
    """Request, position of its first token, number of tokens."""
    padding: int = 0
    empty_group_at: int | None = None
    answered: tuple[str, ...] = ()


def pictures(
    scenario: Scenario, falls_at: int | None, blame: Blame | None, trace: Sequence[TracedStep] = ()
) -> Iterator[StepPicture]:
    """Each step's rows as they lie in memory, those that were wrongly got marked; an engine's steps are its trace."""
    requests = {request.name: request for request in scenario.requests}
    misplaced = {row.got for row in blame.wrong if row.got} if blame else set()
    taken = _planned(scenario) if scenario.traffic is None else _traced(scenario.traffic, list(requests), trace)
    for index, step in enumerate(taken):
        runs: list[Run] = []
        groups = groupby(step.batch, key=lambda entry: requests[entry[0]].task)
        for group, (_, members) in enumerate(groups):
            for name, first, count in members:
                runs.append(
                    Run(
                        request=name,
                        first=first,
                        count=count,
                        opens=first == 0,
                        closes=first + count == requests[name].prompt_len,
                        group=group,
                        misplaced=frozenset(
                            origin.position
                            for origin in misplaced
                            if origin.kind == "token"
                            and origin.request == name
                            and first <= origin.position < first + count
                        ),
                    )
                )
        yield StepPicture(
            index, step.events, tuple(runs), step.padding, step.empty_group_at, index == falls_at, step.answered
        )


def _planned(scenario: Scenario) -> Iterator[_Taken]:
    """The steps of a scenario that has its own."""
    cached = {request.name: request.num_cached_tokens for request in scenario.requests}
    computed = dict(cached)
    for step in scenario.steps:
        for name in (*step.preempted, *step.aborted):
            computed[name] = cached[name]
        batch = [(name, computed[name], count) for name, count in step.scheduled]
        for name, count in step.scheduled:
            computed[name] += count
        events = [*(f"preempt {name}" for name in step.preempted), *(f"abort {name}" for name in step.aborted)]
        yield _Taken(tuple(events), batch, step.padding, step.empty_group_at)


def _traced(traffic: Traffic, names: Sequence[str], trace: Sequence[TracedStep]) -> Iterator[_Taken]:
    """The steps that an engine made of its traffic."""
    reached: dict[str, int] = {}
    for number, step in enumerate(trace):
        arrivals = list(zip(names, traffic.arrivals, strict=True))
        events = ["reset the prefix cache"] * (number in traffic.cache_resets)
        events += [f"{name} arrives" for name, arrival in arrivals if arrival.at == number]
        events += [f"abort {name}" for name, arrival in arrivals if arrival.abort_at == number]
        events += [f"preempt {name}" for name in step.preempted]
        events += [f"{name} starts over" for name, first, _ in step.batch if first < reached.get(name, 0)]
        reached.update({name: first + count for name, first, count in step.batch})
        yield _Taken(tuple(events), step.batch, answered=step.finished)


def _describe_requests(scenario: Scenario) -> Iterator[str]:
    """Each request's task, pooling type and length, what departs from the default, and when it comes and goes."""
    traffic = scenario.traffic
    for place, request in enumerate(scenario.requests):
        length = counted(request.prompt_len, "token")
        parts = [f"{request.name}: {request.task} ({scenario.pooling_type(request)}), {length}"]
        parts += [f"{name} {value}" for name, value in departures(request) if name not in _ALWAYS_TOLD]
        if request.step_tag_id is not None:
            parts.append(f"prompt {list(request.prompt_token_ids[:16])}")
        if traffic is not None:
            parts += [f"{name} {value}" for name, value in departures(traffic.arrivals[place])]
        yield ", ".join(parts)


_ALWAYS_TOLD: Final = ("name", "task", "prompt_token_ids")


def describe_options(scenario: Scenario) -> str:
    """The options that are not at their default; the seed of the rows says nothing to a reader."""
    changed = [f"{name} {value}" for name, value in departures(scenario.options) if name != "seed"]
    if scenario.traffic is not None:
        changed += [f"{name} {value}" for name, value in departures(scenario.traffic) if name != "arrivals"]
    return ", ".join(changed) or "default"


def counted(number: int, noun: str) -> str:
    """A number with its noun, singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rows(number: int) -> str:
    return counted(number, "row")
