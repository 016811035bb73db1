"""Poolers with one fault each that a CPU can't show, and two that look alike but are right.

`MEMBERS` says for each fault which contract is meant to catch it on the simulated device.
"""

from dataclasses import dataclass
from typing import Any

from fuzz.mix import Mix
from impl.config import Subject, SyncBudget
from tests.zoo_sim import late, memory, waits

ALL = Mix(pooling_types=("ALL",))
NEVER = SyncBudget()


@dataclass(frozen=True)
class Member:
    """A pooler, the contract that should catch it (empty for a right one), and where to look."""

    factory: Any
    contract: str
    mix: Mix = ALL
    budget: SyncBudget = NEVER

    @property
    def subject(self) -> Subject:
        """The pooler as a subject for ALL, or for what its mix asks."""
        kinds = self.mix.pooling_types
        return Subject(
            name=self.factory.__name__,
            build=lambda config, _: self.factory(config).method(config.pooling_type),
            supports=frozenset(kinds),
            sync_budgets=dict.fromkeys(kinds, self.budget),
        )


MALFORMED = Mix(pooling_types=("ALL",), malformed=("counts-on-device",))
LATE = Mix(pooling_types=("ALL",), p_late_copies=0.5)

MEMBERS = (
    Member(waits.ReadPerRequest, "sync-budget"),
    Member(waits.ReadPerStep, "sync-budget"),
    Member(waits.HiddenMask, "sync-budget"),
    Member(waits.BlockingUpload, "sync-budget"),
    Member(waits.CountsFromAnywhere, "sync-budget", MALFORMED),
    Member(memory.ViewKept, "state-owns-its-rows"),
    Member(memory.BufferPinned, "state-is-bounded"),
    Member(memory.InputCleared, "inputs-unchanged"),
    Member(late.ReadTooEarly, "values", LATE),
    Member(late.SourceRewritten, "values", LATE),
)
GROWS = Member(waits.ReadPerRequest, "waits-do-not-grow", budget=SyncBudget(per_call=1000))
"""Within its budget in any batch, and still worse with each request."""
RIGHT = (
    Member(late.ReadInTime, "", LATE, SyncBudget(per_call=1)),
    Member(late.SourceKept, "", LATE),
)
