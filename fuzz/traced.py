"""What an engine did in one step, as plain data: part of a judgement, a finding and a trace."""

import msgspec

from impl.engine import EngineStep


class TracedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of an engine."""

    batch: tuple[tuple[str, int, int], ...] = ()
    """In batch order: the request, how many of its tokens were computed before, how many were scheduled."""
    preempted: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    """Who was answered."""


def traced(step: EngineStep) -> TracedStep:
    """A step without its tensors."""
    batch = tuple((span.name, span.start, span.count) for span in step.spans)
    return TracedStep(batch, step.preempted, step.resumed, tuple(step.outputs))
