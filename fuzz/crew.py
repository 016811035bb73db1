"""Worker processes on the scenarios of a seed: ranges go out, what came of them comes back in order.

A process that dies costs the scenario at which it died, which becomes a failure; the rest of its range goes out
again, and that scenario only to the other subjects. Nothing here knows of findings.
"""

import heapq
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
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
from fuzz.jobs import Setup, play, reloaded
from fuzz.ranges import Fell, Outcome, Past, Ranges
from fuzz.verdict import Judgement, Verdict
from oracle import contracts

RANGE_S: Final = 0.05
"""How long a range should take: short, so that a run ends soon, and long beside the handing out."""
MAX_RANGE: Final = 64
MAX_AHEAD: Final = 4096
"""Scenarios that may be out, or back, before the first of them is taken."""
PATIENCE_S: Final = 0.2
"""How long to wait for an answer before looking around."""


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
        self.ranges = Ranges(first)
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
        self._again: list[_Range] = []
        self._died: dict[int, list[Fell]] = defaultdict(list)
        self._range_size = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()

    def work(self) -> None:
        """Hand out what may go out, and take in what comes back within a moment."""
        self._attend(())

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
        span = self.ranges.cut(self._range_size, MAX_AHEAD)
        return None if span is None else _Range(*span)

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
                fell = sorted((*fell, *died), key=lambda own: (own.index, own.position))
                self.ranges.put(done.first, Outcome(played, fell))
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
