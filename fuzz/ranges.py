"""Ranges of a campaign's scenarios: which go out next, and what came of those that are back, in order.

Who plays them, and where, is none of its business.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fuzz.findings import Failure, Span
from fuzz.jobs import Played
from fuzz.verdict import Judgement
from impl.config import Subject
from oracle.scenario import Scenario

NO_END: Final = 1 << 62


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

    def failure(self, subjects: Sequence[Subject]) -> Failure:
        """What that says of the subject."""
        subject = subjects[self.position]
        return Failure(self.scenario, subject.name, subject.spec, self.judgement)


@dataclass(frozen=True)
class Outcome:
    """What came of a range."""

    played: Played
    fell: Sequence[Fell]


class Ranges:
    """The scenarios from number `first` on, cut into ranges."""

    def __init__(self, first: int = 0, may_go_out: int = NO_END) -> None:
        self.next = first
        """The first scenario that has not been taken from here."""
        self.may_go_out = may_go_out
        """The first scenario that may not be handed out."""
        self.until_s: float | None = None
        """When to hand out no more, on the monotonic clock."""
        self._out = first
        self._back: dict[int, Outcome] = {}

    @property
    def is_done(self) -> bool:
        """Whether nothing is out or waits to be taken, and nothing more may go out."""
        return self.next == self._out and (self._is_late or self._out >= self.may_go_out)

    def cut(self, size: int, max_ahead: int) -> Span | None:
        """The next range, at most so long; None if none may go out.

        `max_ahead` bounds the scenarios that are out, or back, before the first of them is taken.
        """
        stop = min(self._out + size, self.may_go_out, self.next + max_ahead)
        if self._is_late or stop <= self._out:
            return None
        first, self._out = self._out, stop
        return first, stop

    def put(self, first: int, outcome: Outcome) -> None:
        """A range is back, or a part of one."""
        self._back[first] = outcome

    def in_order(self) -> Iterator[Outcome]:
        """What has come back, as far as nothing before it is missing."""
        while self.next in self._back:
            outcome = self._back.pop(self.next)
            yield outcome
            self.next = outcome.played.stop

    @property
    def _is_late(self) -> bool:
        return self.until_s is not None and time.monotonic() >= self.until_s
