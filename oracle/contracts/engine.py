"""Of an engine: from arrival to result."""

from collections.abc import Sequence

from oracle.contracts.contract import declare


@declare("before")
def batch_belongs_together(problems: Sequence[str]) -> str | None:
    """Every field of a slot in the batch belongs to the request named there.

    Why: requests move between slots when others leave, and each field moves by itself.
    Without it: a request is pooled with its neighbour's length, parameters or token ids.
    """
    return "; ".join(problems) or None


@declare("after")
def step_output_is_a_snapshot(rewritten: Sequence[str]) -> str | None:
    """What a step hands to the scheduler stays as it is while the next step begins.

    Why: under async scheduling the next step updates the batch before the scheduler reads the last one's results.
    Without it: results go to the requests that are in those slots by then.
    """
    return "; ".join(rewritten) or None


@declare("after")
def every_request_finishes(waiting: Sequence[str], steps: int) -> str | None:
    """A request that fits the engine finishes within a bounded number of steps.

    Why: a request that is passed over for ever looks to its client like a slow one.
    Without it: the engine idles while a request hangs.
    """
    return f"after {steps} steps without progress there still wait: {', '.join(waiting)}"


@declare("after")
def finishes_once(name: str, results: Sequence[object]) -> str | None:
    """A request is answered exactly once.

    Why: an answer ends the request for its client.
    Without it: a client waits for ever, or gets a partial result before the final one.
    """
    if len(results) == 1 and results[0] is not None:
        return None
    told = ["nothing" if result is None else "a result" for result in results]
    return f"request {name} was answered {len(results)} times ({', '.join(told) or 'never'}), but should be once"


@declare("after")
def nothing_left_behind(leftovers: Sequence[str]) -> str | None:
    """Once a request has left, by finishing or by abort, no state of its own remains.

    Why: slots, blocks and caches are reused.
    Without it: memory leaks, and the next request in the slot begins with somebody else's rows.
    """
    return "; ".join(leftovers) or None
