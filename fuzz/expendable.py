"""Processes that may die of what they run: each does one job at a time, and tells how it ended if it ends.

A process arms an alarm before each scenario, which ends it if that does not come back, and lives under a limit
of memory. Its last words, a traceback, come through a pipe. Nothing here knows of pooling or of campaigns.
"""

import faulthandler
import multiprocessing
import os
import random
import re
import resource
import signal
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from impl.config import SubjectError
from oracle.device.record import is_subjects

OUT_OF_MEMORY: Final = 86
"""Exit status of a process that found no memory for the harness itself."""
_STATM: Final = Path("/proc/self/statm")
_HARNESS: Final = str(Path(__file__).parent)
_STDLIB: Final = sysconfig.get_path("stdlib")
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """What one scenario may take on one subject before its process is ended."""

    scenario_s: float = 10.0
    memory_bytes: int | None = 4 << 30
    """Address space beyond what the process begins with; None: no limit."""


@dataclass(frozen=True)
class Told:
    """Something that a job says while it goes on."""

    value: Any


@dataclass(frozen=True)
class Done:
    """A job's result."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """What a job raised."""

    error: Exception


@dataclass(frozen=True)
class Death:
    """The end of a process in the middle of a job.

    Attributes:
        hangs: whether the alarm ended it.
        how: in words.
        place: file and line of the code it was in, if known.
        index: the scenario it was at.
        position: the subject it was at.

    """

    hangs: bool
    how: str
    place: str
    index: int
    position: int


Message = Told | Done | Failed | Death


class Watch:
    """Inside a process: where it is, and the alarm."""

    def __init__(self, at: Any, limit_s: float, connection: Connection) -> None:
        self._at = at
        self._limit_s = limit_s
        self._connection = connection

    def begin(self, index: int, position: int, limit_s: float | None = None) -> None:
        """A scenario begins on a subject; if neither `begin` nor `rest` is called in time, the process ends."""
        self._at[0], self._at[1] = index, position
        signal.setitimer(signal.ITIMER_REAL, limit_s or self._limit_s)

    def rest(self) -> None:
        """Nothing of the subject's runs from here on."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def tell(self, value: Any) -> None:
        """Say something before the job is done."""
        self._connection.send(Told(value))


Job = Callable[..., Any]
"""`job(setup, watch, *arguments)`, a function of a module's top level."""


class Expendable:
    """A process with a setup to work with, which does one job at a time."""

    def __init__(
        self,
        context: ForkContext | ForkServerContext,
        make_setup: Callable[[], Any],
        limits: Limits,
        seed: int,
    ) -> None:
        self._limits = limits
        self._at = context.RawArray("q", 2)
        self._connection, theirs = context.Pipe()
        self._last_words, trace = context.Pipe(duplex=False)
        arguments = (make_setup, self._connection, theirs, trace, self._at, limits, seed)
        self._process = context.Process(target=_serve, args=arguments)
        with _no_interrupt():
            self._process.start()
        theirs.close()
        trace.close()

    def give(self, job: Job, *arguments: Any, index: int = 0) -> None:
        """Set it to work; `index` is where it is until it says otherwise."""
        self._at[0], self._at[1] = index, 0
        try:
            self._connection.send((job, arguments))
        except OSError:
            # It has died since the last job, which `read` will tell.
            return

    def read(self) -> Message | None:
        """What it says, or how it ended; None if it says nothing yet."""
        try:
            if self._connection.poll():
                message: Message = self._connection.recv()
                return message
        except (EOFError, OSError):
            # It is at its end, or has closed what it was to speak through, which must be one.
            self._process.join(1)
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()
        return self._death() if self._process.exitcode is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether it can be given another job."""
        return self._process.is_alive()

    def kill(self) -> None:
        """End it and free what it held."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()
        self._last_words.close()

    def _death(self) -> Death:
        code = self._process.exitcode
        assert code is not None
        place = _place(os.read(self._last_words.fileno(), 1 << 16).decode() if self._last_words.poll() else "")
        if code == OUT_OF_MEMORY:
            how = f"used up the {_megabytes(self._limits.memory_bytes)} that its process may allocate"
        elif code < 0:
            how = f"ended its process by {signal.Signals(-code).name}"
        else:
            how = f"ended its process with exit status {code}"
        return Death(-code == signal.SIGALRM, how, place, self._at[0], self._at[1])

    @property
    def handles(self) -> tuple[Any, Any]:
        """What becomes ready when it says something or ends."""
        return self._connection, self._process.sentinel


def context_for(device: torch.device) -> ForkContext | ForkServerContext:
    """How to make processes: a fork has everything in it already, but CUDA does not survive one."""
    if device.type != "cuda":
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fuzz.jobs"])
    return context


def limits_on(device: torch.device, limits: Limits) -> Limits:
    """Without one of memory on CUDA, whose driver reserves far more address space than it uses."""
    return Limits(limits.scenario_s, None) if device.type == "cuda" else limits


def wait_for(processes: Sequence[Expendable], timeout_s: float) -> None:
    """Wait until one of them says something or ends, or the time is up."""
    wait([handle for process in processes for handle in process.handles], timeout_s)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C is for the parent: a child is born deaf to it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    make_setup: Callable[[], Any],
    parents: Connection,
    connection: Connection,
    trace: Connection,
    at: Any,
    limits: Limits,
    seed: int,
) -> None:
    """Do what is asked until the parent is gone.

    A fork holds the parent's ends of its own pipe, which it closes here, and of those of the processes before it. So
    when the parent is killed the last process sees that its pipe has ended, goes, and then the one before it does.
    """
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGALRM})
    faulthandler.enable(trace.fileno(), all_threads=False)
    faulthandler.register(signal.SIGALRM, trace.fileno(), all_threads=False, chain=True)
    torch.set_num_threads(1)
    # Forks begin with one generator; a subject that depends on chance must not look steady for that.
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    watch = Watch(at, limits.scenario_s, connection)
    setup, limited = None, False
    while True:
        try:
            job, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            setup = make_setup() if setup is None else setup
            if not limited:
                _limit(limits.memory_bytes)
                limited = True
            said: Message = Done(job(setup, watch, *arguments))
        except SubjectError as error:
            said = Failed(SubjectError(str(error)))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except Exception:
            said = Failed(RuntimeError(traceback.format_exc()))
        watch.rest()
        try:
            connection.send(said)
        except OSError:
            return


def _limit(memory_bytes: int | None) -> None:
    """Let the process allocate so much more, where the system keeps count."""
    if memory_bytes is not None and _STATM.exists():
        used = int(_STATM.read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = used + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def _place(last_words: str) -> str:
    """File and line of the subject's code: the innermost frame above the harness that is its own."""
    for file, line in _FRAME.findall(last_words):
        if file.startswith(_HARNESS):
            return ""
        if is_subjects(file) and ("site-packages" in file or not file.startswith(_STDLIB)):
            return f"{file}:{line}"
    return ""


def _megabytes(memory_bytes: int | None) -> str:
    return f"{(memory_bytes or 0) >> 20:,} MB"
