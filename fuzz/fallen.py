"""How a scenario ends before its end: with what verdict, and where in the subject's code."""

import inspect
import traceback
from typing import Any

from fuzz.blame import Blame
from fuzz.late import Scored
from fuzz.verdict import Judgement, Verdict
from oracle import contracts
from oracle.device.record import is_subjects


class Fallen(Exception):  # noqa: N818 - not an error of ours: it carries the verdict out of the step
    """The scenario is over before its end."""

    def __init__(
        self, verdict: Verdict, contract: str, message: str, place: str = "", blame: Blame | None = None
    ) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.contract = contract
        self.place = place
        self.pooling_type = ""
        self.beneath = ""
        self.blame = blame

    def judgement(self, comparisons: int, step: int | None) -> Judgement:
        """What it means for the scenario."""
        return Judgement(
            verdict=self.verdict,
            comparisons=comparisons,
            contract=self.contract,
            message=str(self),
            step=step,
            place=self.place,
            pooling_type=self.pooling_type,
            beneath=self.beneath,
            blame=self.blame,
        )


def raised(error: Exception, may_reject: bool) -> Fallen:
    """What it means that a subject raised."""
    message = str(contracts.accepts_valid_input(error))
    if may_reject:
        return Fallen(Verdict.REJECTS, "reject-or-be-right", message, _place_of(error))
    return Fallen(Verdict.CRASHES, "accepts-valid-input", message, _place_of(error))


def _place_of(error: Exception) -> str:
    """File and line of the innermost frame that is the subject's own code."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if is_subjects(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def place_of_code(pool: Any) -> str:
    """File and line at which what was called is defined, if it is Python."""
    pool = pool.pool if isinstance(pool, Scored) else pool
    routine = pool if inspect.isroutine(pool) else getattr(type(pool), "forward", type(pool).__call__)
    code = getattr(inspect.unwrap(routine), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""
