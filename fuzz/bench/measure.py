"""Takes times: interleaved rounds in one process, on the CPU's clock or by CUDA events.

In each round every participant has one sample, in an order drawn anew and then turned round, so that whatever
slows the machine slows all of them. A sample during which the system took the processor away is taken again:
the time it spent waiting says nothing of the code. Time that the code itself waits is counted. Nothing here
knows of poolers.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from fuzz.bench.prepared import Timed

if sys.platform == "linux":
    import resource

SAMPLE_S: Final = 0.0005
"""How long a sample lasts at least: calls are repeated until the clock's own error is small."""
_PATIENCE_S: Final = 0.02
"""How long a sample is tried for before an interrupted one is let stand: long calls are always interrupted."""
_MAX_CALLS: Final = 2000
_WARM_UP_S: Final = 0.02

Times = np.ndarray[Any, np.dtype[np.float64]]


def interleave(participants: Sequence[Timed], rounds: int, device: torch.device, seed: int = 0) -> list[Times]:
    """Microseconds a call of each participant, one sample a round.

    Returns:
        One array (rounds,) a participant; the same place in two of them is the same round.
    """
    sample = _sampler(device)
    calls = [warm_up(timed, device) for timed in participants]
    taken = np.empty((len(participants), rounds))
    order = np.random.default_rng(seed)
    places = list(range(len(participants)))
    with _without_garbage_collection():
        for number in range(rounds):
            # Each order is followed by its reverse, so that everyone is as often first as last.
            places = places[::-1] if number % 2 else order.permutation(len(participants)).tolist()
            for place in places:
                taken[place, number] = 1e6 * sample(participants[place], calls[place])
    return list(taken)


def warm_up(timed: Timed, device: torch.device) -> int:
    """Call it until it runs at its pace, and see how many calls make a sample."""
    sample = _sampler(device)
    stop = time.perf_counter() + _WARM_UP_S
    call_s = sample(timed, 1)
    while time.perf_counter() < stop:
        call_s = min(call_s, sample(timed, 1))
    return max(1, min(_MAX_CALLS, round(SAMPLE_S / max(call_s, 1e-7))))


def _sampler(device: torch.device) -> Callable[[Timed, int], float]:
    return _on_cuda if device.type == "cuda" else _on_cpu


def _on_cpu(timed: Timed, calls: int) -> float:
    """Seconds a call."""
    stop = time.perf_counter() + _PATIENCE_S
    while True:
        before = _interruptions()
        spent = _by_clock(timed, calls)
        if _interruptions() == before or time.perf_counter() > stop:
            return spent / calls


def _by_clock(timed: Timed, calls: int) -> float:
    call, reset, clock = timed.call, timed.reset, time.perf_counter
    if reset is None:
        # What lies in the caches is what this one left there, not the one before it.
        call()
        started = clock()
        for _ in range(calls):
            call()
        return clock() - started
    spent = 0.0
    for _ in range(calls):
        reset()
        started = clock()
        call()
        spent += clock() - started
    return spent


def _interruptions() -> int:
    """How often the system has taken the processor from this thread; always 0 where it doesn't say."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _on_cuda(timed: Timed, calls: int) -> float:
    """Seconds a call from its first launch to the end of its last kernel, by events."""
    spent_ms = 0.0
    # What is put back between calls must not be timed, so then each call has its own pair of events.
    batches, size = (1, calls) if timed.reset is None else (calls, 1)
    for _ in range(batches):
        if timed.reset is not None:
            timed.reset()
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(size):
            timed.call()
        end.record()
        end.synchronize()
        spent_ms += begin.elapsed_time(end)
    return spent_ms / 1e3 / calls


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
