"""Between runs: what must not depend on the schedule."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from oracle.contracts.contract import declare
from oracle.contracts.telling import places_told, requests_told
from oracle.device.record import Record


@declare("between")
def state_determines_behaviour(message: str) -> str | None:
    """What a pooler does depends on its input and its pooling states, on nothing else that it kept.

    Why: states are all that an engine clears, moves and counts.
    Without it: a request's result depends on who was served before it.
    """
    return message


@declare("between")
def same_answer_again(message: str) -> str | None:
    """A scenario that is run again in a fresh process comes out as before.

    Why: what depends on chance, time or addresses can't be tested, and a test that passes says nothing.
    Without it: a fault that shows once a day.
    """
    return message


@declare("between")
def waits_do_not_grow(by_size: Mapping[int, Record], declared: int) -> str | None:
    """Calls that differ in the number of requests alone wait equally often, or as much more as is declared.

    Why: a wait a request is bearable in a test of two requests and a stall in a batch of 256.
    Without it: latency grows with load, which is when it hurts.
    """
    size = max(by_size, default=0)
    if size < LADDER[-1] or len(by_size) < len(LADDER):
        return None
    waits = [len(record.waiting) for record in by_size.values()]
    growth = float(np.polyfit(list(by_size), waits, 1)[0])
    if growth <= declared + _STEADY:
        return None
    record = by_size[size]
    return (
        f"{record.describe_waits()} for {requests_told(size)}, {growth:.1f} more with each, but should be at most "
        f"{declared} more: {places_told(record.places())}"
    )


LADDER: Final = (1, 2, 4, 8, 16, 32)
"""Batch sizes that show growth; from fewer or smaller ones none is concluded."""
_STEADY: Final = 1 / 16
"""More waits a request than this are growth; less is a wait that small batches get by without."""
