"""Worker processes on the scenarios of a seed: ranges go out, what came of them comes back in order.

A process that dies costs the scenario at which it died, which becomes a failure; the rest of its range goes out
again, and that scenario only to the other subjects. Nothing here knows of findings.
"""

import heapq
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from fuzz.campaign import scenarios
from fuzz.expendable import (
    Death,
    Done,
    Expendable,
    Failed,
    Job,
    Limits,
    Message,
    Told,
    context_for,
    limits_on,
    wait_for,
)
from fuzz.findings import Span
from fuzz.jobs import Played, Setup, play, reloaded
from fuzz.verdict import Judgement, Verdict
from oracle import contracts
from oracle.scenario import Scenario

RANGE_S: Final = 0.05
"""How long a range should take: short, so that a run ends soon, and long beside the handing out."""
MAX_RANGE: Final = 64
MAX_AHEAD: Final = 4096
"""Scenarios that may be out, or back, before the first of them is taken."""
NO_END: Final = 1 << 62
PATIENCE_S: Final = 0.2
"""How long to wait for an answer before looking around."""


@dataclass(frozen=True)
class Past:
    """What a process had been through at some time: ends of spans, of which it has been through more since."""

    ends: "array[int]"
    length: int
    last: int
    """The end of the last span at that time, which may have grown."""
    own: Span
    """What it has been through of the range it was at."""

    def spans(self) -> tuple[Span, ...]:
        """In order, those side by side as one."""
        ends = [*self.ends[: self.length]]
        if ends and self.last == self.own[0]:
            ends[-1] = self.own[1]
        else:
            ends[-1:] = [self.last] if ends else []
            ends += self.own
        return tuple((first, stop) for first, stop in zip(ends[::2], ends[1::2], strict=True) if first < stop)


@dataclass(frozen=True)
class Fell:
    """A scenario on which a subject failed, or the checker did."""

    index: int
    position: int
    """Place of the subject."""
    scenario: Scenario
    judgement: Judgement
    past: Past


@dataclass(frozen=True)
class Outcome:
    """What came of a range."""

    played: Played
    fell: Sequence[Fell]


@dataclass(order=True, frozen=True)
class _Range:
    first: int
    stop: int
    spared: tuple[int, ...] = ()
    """Places of subjects that have ended a process at this scenario."""


@dataclass
class _Worker:
    process: Expendable
    range: _Range | None = None
    since_s: float = 0.0
    ends: "array[int]" = field(default_factory=partial(array, "q"))
    """What it has been through, as ends of spans."""

    def past(self, index: int) -> Past:
        assert self.range is not None
        return Past(self.ends, len(self.ends), self.ends[-1] if self.ends else -1, (self.range.first, index))

    def keep(self, done: _Range) -> None:
        if self.ends and self.ends[-1] == done.first:
            self.ends[-1] = done.stop
        else:
            self.ends.extend((done.first, done.stop))


class Crew:
    """So many workers, and processes for a job of their own."""

    def __init__(self, setup: Setup, size: int, limits: Limits, first: int = 0) -> None:
        self.limits = limits_on(setup.device, limits)
        self.next = first
        """The first scenario that has not been taken from here."""
        self.may_go_out = NO_END
        """The first scenario that may not be handed out."""
        self.until_s: float | None = None
        """When to hand out no more, on the monotonic clock."""
        self.tick: Callable[[], None] = lambda: None
        """Called a few times a second, whatever is being waited for."""
        self.warnings: list[str] = []
        self._setup = setup
        self._context = context_for(setup.device)
        self._make_setup: Callable[[], Setup] = lambda: setup
        if setup.device.type == "cuda":
            specs = [(subject.spec, dict(subject.sync_budgets)) for subject in setup.subjects]
            self._make_setup = partial(reloaded, specs, str(setup.device), setup.mix, setup.seed)
        self._made = 0
        self._workers = [_Worker(self._process()) for _ in range(size)]
        self._out = first
        self._again: list[_Range] = []
        self._back: dict[int, Outcome] = {}
        self._died: dict[int, list[Fell]] = defaultdict(list)
        self._range_size = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()

    @property
    def is_done(self) -> bool:
        """Whether nothing is out or waits to be taken, and nothing more may go out."""
        return self.next == self._out and (self._is_late or self._out >= self.may_go_out)

    @property
    def _is_late(self) -> bool:
        return self.until_s is not None and time.monotonic() >= self.until_s

    def work(self) -> None:
        """Hand out what may go out, and take in what comes back within a moment."""
        self._attend(())

    def in_order(self) -> Iterator[Outcome]:
        """What has come back, as far as nothing before it is missing."""
        while self.next in self._back:
            outcome = self._back.pop(self.next)
            yield outcome
            self.next = outcome.played.stop

    def ask(
        self, job: Job, *arguments: Any, max_time_s: float | None = None, hear: Callable[[Any], None] | None = None
    ) -> Any:
        """Have a job done in a fresh process, while the workers go on.

        Returns:
            What the job does; a `Death`, if that is how it ended; None if it took too long.

        Raises:
            SubjectError: the subject can't be had.
        """
        deadline_s = None if max_time_s is None else time.monotonic() + max_time_s
        process = self._process()
        try:
            process.give(job, *arguments)
            while deadline_s is None or time.monotonic() < deadline_s:
                self._attend((process,))
                match process.read():
                    case Told(value):
                        if hear is not None:
                            hear(value)
                    case Done(value):
                        return value
                    case Failed(error):
                        raise error
                    case Death() as death:
                        return death
            return None
        finally:
            process.kill()

    def judgement(self, job: Job, *arguments: Any) -> Judgement:
        """What a job says of a scenario in a fresh process, or the death of that.

        Raises:
            SubjectError: the subject can't be had.
        """
        said: Judgement | Death = self.ask(job, *arguments)
        return self.judged(said) if isinstance(said, Death) else said

    def judged(self, death: Death) -> Judgement:
        """What it means for a scenario that a process died of it."""
        if death.hangs:
            message = str(contracts.comes_back())
            return Judgement(Verdict.HANGS, 0, "comes-back", message, place=death.place)
        message = str(contracts.process_survives(death.how))
        return Judgement(Verdict.CRASHES, 0, "process-survives", message, place=death.place)

    def _process(self) -> Expendable:
        self._made += 1
        return Expendable(self._context, self._make_setup, self.limits, self._made)

    def _attend(self, others: Sequence[Expendable]) -> None:
        self.tick()
        self._hand_out()
        busy = [worker for worker in self._workers if worker.range is not None]
        wait_for([*(worker.process for worker in busy), *others], PATIENCE_S)
        for worker in busy:
            message = worker.process.read()
            if message is not None:
                self._take_in(worker, message)
        self._hand_out()

    def _hand_out(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.range is not None:
                continue
            given = self._next_range()
            if given is None:
                return
            if not worker.process.is_alive:
                self.warnings.append("a worker process ended between two scenarios, so not in the pooler's call")
                worker = self._replace(place)
            worker.range, worker.since_s = given, time.monotonic()
            worker.process.give(play, given.first, given.stop, given.spared, index=given.first)

    def _next_range(self) -> _Range | None:
        if self._again:
            return heapq.heappop(self._again)
        stop = min(self._out + self._range_size, self.may_go_out, self.next + MAX_AHEAD)
        if self._is_late or stop <= self._out:
            return None
        given, self._out = _Range(self._out, stop), stop
        return given

    def _take_in(self, worker: _Worker, message: Message) -> None:
        done = worker.range
        assert done is not None
        match message:
            case Done(played):
                died = self._died.pop(done.first, []) if done.spared else []
                fell = [
                    Fell(index, position, scenario, judgement, worker.past(index))
                    for index, position, scenario, judgement in played.failures
                ]
                self._back[done.first] = Outcome(
                    played, sorted((*fell, *died), key=lambda own: (own.index, own.position))
                )
                took_s = (time.monotonic() - worker.since_s) / (done.stop - done.first)
                self._range_size = max(1, min(MAX_RANGE, int(RANGE_S / max(took_s, 1e-9))))
                if not done.spared:
                    worker.keep(done)
                worker.range = None
            case Failed(error):
                raise error
            case Death():
                self._bury(worker, done, message)

    def _bury(self, worker: _Worker, done: _Range, death: Death) -> None:
        """Note at which scenario a process died, and have the rest of its range done again."""
        index = min(max(death.index, done.first), done.stop - 1)
        scenario = next(scenarios(self._setup.mix, self._setup.seed, index))
        self._died[index].append(Fell(index, death.position, scenario, self.judged(death), worker.past(index)))
        rest = (
            _Range(done.first, index),
            _Range(index, index + 1, (*done.spared, death.position)),
            _Range(index + 1, done.stop),
        )
        for part in rest:
            if part.first < part.stop:
                heapq.heappush(self._again, part)
        self._replace(self._workers.index(worker))

    def _replace(self, place: int) -> _Worker:
        self._workers[place].process.kill()
        self._workers[place] = _Worker(self._process())
        return self._workers[place]
