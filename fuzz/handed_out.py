"""What a pooler handed out, looked at again when an engine would read it: after the next step, or when copies land."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from fuzz.fallen import Fallen
from fuzz.verdict import Verdict
from oracle.contracts import wrong_result
from oracle.device.stream import STREAM, RewrittenSourceError
from oracle.rows import Universe
from oracle.scenario import Options

Result = tuple[str, Any, Any]
"""A request with its output, due and actual."""


class HandedOut:
    """The outputs of the steps that may still be read."""

    def __init__(self, options: Options, universe: Universe) -> None:
        self._options = options
        self._universe = universe
        self._steps: list[list[Result]] = []
        """What each step handed out, this one's last."""
        self._unread: tuple[int, list[list[Result]]] = (0, [])
        """How much was launched by the end of the step before, and its outputs, which an async engine reads late."""

    def begin_step(self) -> None:
        """A step begins."""
        self._steps.append([])

    def add(self, results: Iterable[Result]) -> None:
        """What a call of this step handed out; an engine that reads at once has just done so."""
        if self._options.async_scheduling or self._options.late_copies:
            self._steps[-1].extend(results)

    def end_step(self, overwrite: Callable[[], None]) -> None:
        """Overwrite the step's buffer, and read the outputs when an engine would.

        Raises:
            Fallen: one of them has changed.
        """
        if not self._options.async_scheduling:
            self._read_when_landed(STREAM.position(), self._steps)
            overwrite()
            self._steps = []
            return
        overwrite()
        self._read_late()
        if self._options.late_copies:
            self._read_when_landed(*self._unread)
            self._unread = STREAM.position(), self._steps
        self._steps = self._steps[-1:]

    def end(self) -> None:
        """Read what the last step handed out.

        Raises:
            Fallen: an output has changed.
        """
        self._read_when_landed(*self._unread)

    def _read_late(self) -> None:
        """Look again at what this step and the last handed out, now that the buffer is overwritten."""
        for name, expected, actual in chain.from_iterable(self._steps):
            if wrong_result(expected, actual, self._universe.origin):
                raise Fallen(
                    Verdict.VIOLATES,
                    "outputs-own-their-rows",
                    f"request {name}'s output changed after it was handed out, by the next step or its buffer",
                )

    def _read_when_landed(self, position: int, steps: Sequence[Sequence[Result]]) -> None:
        """Look again at what was handed out, now that the copies launched before `position` have landed."""
        try:
            rewritten = STREAM.land(position)
        except RewrittenSourceError as error:
            raise Fallen(Verdict.VIOLATES, "values", str(error)) from error
        why = f"; the host rewrote the source of an upload under way, {', '.join(rewritten)}" if rewritten else ""
        for name, expected, actual in chain.from_iterable(steps):
            wrong = wrong_result(expected, actual, self._universe.origin)
            if wrong:
                raise Fallen(
                    Verdict.VIOLATES, "values", f"when the step's copies had landed, request {name} {wrong}{why}"
                )
