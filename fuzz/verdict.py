"""What became of a scenario on a subject, from which every report and exit code follows."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from fuzz.blame import Blame
from fuzz.traced import TracedStep


class Verdict(Enum):
    """In order of badness: of several, the last wins."""

    HOLDS = "holds"
    REJECTS = "rejects"
    """The input was not one that a pooler must serve, and it raised."""
    UNKNOWN = "unknown"
    """The checker itself failed, so nothing is known."""
    UNSTABLE = "unstable"
    """It failed, but not each time, or not in a fresh process."""
    CRASHES = "crashes"
    """The subject raised where it must not, or ended its process."""
    HANGS = "hangs"
    VIOLATES = "violates"

    @property
    def rank(self) -> int:
        """Place in the order of badness."""
        return _ORDER.index(self)

    @property
    def is_finding(self) -> bool:
        """Whether it speaks against the subject."""
        return self in (Verdict.UNSTABLE, Verdict.CRASHES, Verdict.HANGS, Verdict.VIOLATES)

    @property
    def raises(self) -> bool:
        """Whether the subject raised, or ended its process."""
        return self in (Verdict.CRASHES, Verdict.REJECTS)


_ORDER: Final = list(Verdict)


@dataclass(frozen=True)
class Judgement:
    """The outcome of one scenario on one subject.

    `contract` and `message` are set unless the verdict is `HOLDS`; `step` is the step at which it fell.
    """

    verdict: Verdict
    comparisons: int
    contract: str = ""
    message: str = ""
    step: int | None = None
    place: str = ""
    """File and line at which the subject raised, or of the pooler that was called."""
    pooling_type: str = ""
    """The pooling type of the call at which it fell; empty for a whole pooler."""
    beneath: str = ""
    """The contract that is broken where `contract` is `reject-or-be-right`."""
    blame: Blame | None = None
    """Whose rows are wrong, if rows are."""
    trace: tuple[TracedStep, ...] = ()
    """What an engine did, step by step, up to where it fell."""
