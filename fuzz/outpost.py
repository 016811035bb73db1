"""A process that plays ranges of a campaign, and examines failures, for who is on another machine.

It is told an `Order`, and then answers requests until nobody is there to ask. It knows nothing of clusters;
`fuzz.relay` starts it there.
"""

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch

from fuzz.campaign import Campaign
from fuzz.cause import Cause
from fuzz.crew import Crew
from fuzz.examine import Examiner
from fuzz.expendable import Limits
from fuzz.findings import Finding
from fuzz.jobs import Played, Setup, reloaded
from fuzz.mix import Mix
from fuzz.ranges import Fell, Outcome, Ranges
from impl.config import SubjectError, SyncBudget
from oracle.device.named import named


@dataclass(frozen=True)
class Order:
    """A campaign as it is told to another machine."""

    specs: list[tuple[str, dict[str, SyncBudget]]]
    device: str
    mix: Mix
    seed: int
    limits: Limits
    shrink_time_s: float
    directory: str
    """From where relative specs are seen, if there is the same there."""

    @classmethod
    def of(cls, campaign: Campaign, setup: Setup, limits: Limits) -> Self:
        """The order for a campaign."""
        return cls(
            [(subject.spec, dict(subject.sync_budgets)) for subject in setup.subjects],
            str(setup.device),
            setup.mix,
            setup.seed,
            limits,
            campaign.shrink_time_s,
            str(Path.cwd()),
        )


@dataclass(frozen=True)
class Stint:
    """A range that was played: what came of it, how long it took, and why it can't be trusted, if so."""

    outcome: Outcome
    took_s: float
    warnings: list[str]


class Outpost:
    """One worker process, and what it takes to look into failures."""

    def __init__(self, order: Order, tick: Callable[[], None]) -> None:
        if Path(order.directory).is_dir():
            os.chdir(order.directory)
        setup = reloaded(order.specs, str(named(order.device)), order.mix, order.seed)
        self._crew = Crew(setup, 1, order.limits)
        self._crew.tick = tick
        self._examiner = Examiner(self._crew, setup.subjects, order.seed, order.shrink_time_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._crew.__exit__(*error)

    def play(self, first: int, stop: int) -> Stint:
        """Play a range, whatever ends on the way."""
        began_s = time.monotonic()
        whole, fell = Played(stop), list[Fell]()
        self._crew.ranges = Ranges(first, stop)
        while not self._crew.ranges.is_done:
            self._crew.work()
            for outcome in self._crew.ranges.in_order():
                whole.add(outcome.played)
                fell += outcome.fell
        warnings, self._crew.warnings = self._crew.warnings, []
        return Stint(Outcome(whole, fell), time.monotonic() - began_s, warnings)

    def examine(self, fell: Fell) -> tuple[Finding, Cause]:
        """Find out what a failure is worth, wherever it was seen."""
        self._crew.ranges = Ranges(0, 0)
        return self._examiner(fell)


def asked(method: Callable[..., Any], *arguments: Any) -> bytes:
    """A request for what a method of `Outpost` does."""
    return pickle.dumps((method.__name__, arguments))


def answered(answer: bytes) -> Any:
    """What came of it.

    Raises:
        SubjectError: a subject can't be had there.
        RuntimeError: anything else that went wrong.
    """
    said = pickle.loads(answer)
    if isinstance(said, Exception):
        raise said
    return said


def serve(handle: int) -> None:
    """Answer what comes over a socket until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    connection = Connection(handle)
    order = connection.recv_bytes()
    with ExitStack() as stack:
        outpost: Outpost | None = None
        while True:
            try:
                name, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            try:
                if outpost is None:
                    outpost = stack.enter_context(Outpost(pickle.loads(order), partial(_leave_with, connection)))
                said = getattr(outpost, name)(*arguments)
            except SubjectError as error:
                said = SubjectError(str(error))
            except Exception:
                said = RuntimeError(traceback.format_exc())
            connection.send_bytes(pickle.dumps(said))


def _leave_with(connection: Connection) -> None:
    """Nobody asks while there is something to do, so what is to be read then is the end."""
    if connection.poll():
        sys.exit()
