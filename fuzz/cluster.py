"""A campaign on an existing Ray cluster: ranges go out as tasks, and what comes back is merged here, in order.

What is lost with a worker or a node is handed out again. Subjects run, and failures are examined, in processes of
the nodes (`fuzz.outpost`); nothing of theirs runs in this one.
"""

import logging
import os
import pickle
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from fuzz.campaign import Campaign, Search
from fuzz.cause import Cause
from fuzz.crew import PATIENCE_S
from fuzz.expendable import Limits
from fuzz.explain import counted
from fuzz.findings import Finding
from fuzz.jobs import Setup
from fuzz.outpost import Order, Outpost, Stint, answered, asked
from fuzz.ranges import Fell, Ranges
from fuzz.relay import relay
from fuzz.state import State
from fuzz.workers import Examine, by_hands
from impl.config import SubjectError

RANGE_S: Final = 1.0
"""How long a range should take, at least."""
RANGE_S_PER_CPU: Final = 0.007
"""The same for each CPU of the cluster, so that merging, 1.4 ms a range, takes a fifth of this process."""
MAX_RANGE: Final = 1 << 14
PER_CPU: Final = 2
"""Ranges that are out, for each CPU of the cluster: one that is played, one that waits."""
AHEAD: Final = 8
"""Ranges that may be out, or back, before the first of them is taken, for each that may be out."""
MAX_LOSSES: Final = 5
"""How often a range may be lost before the campaign is given up."""
LOOK_EVERY_S: Final = 5.0
"""How often to see how many CPUs there are."""
INSTALL: Final = "python -m pip install 'poolproof[ray]'"


class ClusterError(Exception):
    """A cluster that can't be had, or can't do what is asked; the message says why."""


def in_cluster(address: str | None, limits: Limits, state: State | None = None) -> Search:
    """A search on the cluster at an address, which goes on from `state` if there is one.

    Without an address it is the cluster that `RAY_ADDRESS` names, or the one that this machine is part of. The
    search raises a `ClusterError` if there is none, or if it loses what it is given again and again.

    Raises:
        ClusterError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ClusterError(f"--engine ray needs Ray, which is not installed here: {INSTALL}") from None
    return by_hands(partial(_hired, ray, address or os.environ.get("RAY_ADDRESS") or "auto", limits), state)


@contextmanager
def _hired(
    ray: Any, address: str, limits: Limits, campaign: Campaign, setup: Setup, first: int
) -> Iterator[tuple["_Cluster", Examine]]:
    if setup.device.type == "cuda":
        raise ClusterError("on a cluster poolers are judged on the CPU or the simulated device: run with --device cpu")
    _knock(address)
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _absent(address, error) from None
    try:
        cluster = _Cluster(ray, Order.of(campaign, setup, limits), campaign, first)
        yield cluster, cluster.examine
        if cluster.num_lost:
            campaign.report.notes.append(
                f"{counted(cluster.num_lost, 'range')} that went with a worker or a node of the cluster "
                f"{'was' if cluster.num_lost == 1 else 'were'} played again"
            )
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody answers at HOST:PORT, where Ray would try again for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _absent(address, error) from None


def _absent(address: str, error: Exception) -> ClusterError:
    return ClusterError(f"there is no Ray cluster at {address!r}: {str(error).splitlines()[0]}")


@dataclass(frozen=True)
class _Range:
    first: int
    stop: int
    losses: int = 0


class _Cluster:
    """Hands out ranges to as many tasks as there are CPUs, and has failures examined."""

    def __init__(self, ray: Any, order: Order, campaign: Campaign, first: int) -> None:
        self.limits = order.limits
        self.ranges = Ranges(first)
        self.warnings: list[str] = []
        self.num_lost = 0
        self._ray = ray
        self._order = ray.put(pickle.dumps(order))
        # Ray may not repeat a task by itself: what is lost is told.
        self._relay = ray.remote(max_retries=0)(relay)
        self._tick = campaign.tell
        self._back: SimpleQueue[tuple[_Range, Future[bytes]]] = SimpleQueue()
        self._num_out = 0
        self._again: list[_Range] = []
        self._range_size = 1
        self._num_cpus = 0
        self._looked_s = -LOOK_EVERY_S

    def work(self) -> None:
        """Hand out what may go out, and take in what comes back within a moment."""
        self._tick()
        self._hand_out()
        try:
            self._take_in(*self._back.get(timeout=PATIENCE_S))
            while True:
                self._take_in(*self._back.get_nowait())
        except Empty:
            return

    def examine(self, fell: Fell) -> tuple[Finding, Cause]:
        """Have a failure examined, while ranges go on."""
        for _ in range(MAX_LOSSES):
            future = self._task(0, asked(Outpost.examine, fell))
            while not future.done():
                self.work()
            answer = self._answer(future)
            if answer is not None:
                finding: tuple[Finding, Cause] = answer
                return finding
        raise ClusterError(f"the cluster lost what it was examining {MAX_LOSSES} times")

    def _hand_out(self) -> None:
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._num_cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._looked_s = time.monotonic()
        while self._num_out < PER_CPU * self._num_cpus:
            given = self._next_range()
            if given is None:
                return
            self._num_out += 1
            future = self._task(1, asked(Outpost.play, given.first, given.stop))
            future.add_done_callback(partial(self._put, given))

    def _next_range(self) -> _Range | None:
        if self._again:
            return self._again.pop()
        span = self.ranges.cut(self._range_size, AHEAD * PER_CPU * self._num_cpus * self._range_size)
        return None if span is None else _Range(*span)

    def _task(self, num_cpus: int, request: bytes) -> "Future[bytes]":
        future: Future[bytes] = self._relay.options(num_cpus=num_cpus).remote(self._order, request).future()
        return future

    def _put(self, given: _Range, future: "Future[bytes]") -> None:
        """Called in a thread of Ray's."""
        self._back.put((given, future))

    def _take_in(self, given: _Range, future: "Future[bytes]") -> None:
        self._num_out -= 1
        stint: Stint | None = self._answer(future)
        if stint is None:
            self.num_lost += 1
            if given.losses + 1 == MAX_LOSSES:
                raise ClusterError(f"the cluster lost scenarios {given.first} to {given.stop - 1} {MAX_LOSSES} times")
            self._again.append(_Range(given.first, given.stop, given.losses + 1))
            return
        self.warnings += stint.warnings
        self.ranges.put(given.first, stint.outcome)
        each_s = stint.took_s / (given.stop - given.first)
        wanted_s = max(RANGE_S, RANGE_S_PER_CPU * self._num_cpus)
        self._range_size = max(1, min(MAX_RANGE, int(wanted_s / max(each_s, 1e-9))))

    def _answer(self, future: "Future[bytes]") -> Any:
        """What a task answers; None if it was lost.

        Raises:
            SubjectError: a subject can't be had on a node.
            ClusterError: a node can't do it for another reason.
        """
        errors = self._ray.exceptions
        try:
            return answered(future.result())
        except errors.RayTaskError as error:
            if isinstance(error.cause, ConnectionError):
                return None
            raise ClusterError(f"a node of the cluster can't do it: {_last_line(error)}") from None
        except errors.RayError:
            return None
        except SubjectError as error:
            raise SubjectError(f"on a node of the cluster: {error}") from None


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
