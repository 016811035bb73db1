"""Whether a subject's calls wait for the device no more often than it declares, call by call and as batches grow."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from fuzz.world import World
from impl.config import Subject, SyncBudget
from oracle import contracts
from oracle.device.record import Record
from oracle.scenario import DENSE_AND_SPARSE, Request


class Waits:
    """The records of one run's calls, beside what its subject declares."""

    def __init__(self, world: World, subject: Subject) -> None:
        self.world = world
        self.subject = subject
        self.records: list[Record] = []
        """What each call asked of the device."""
        self._alike: dict[Any, dict[int, Record]] = {}
        """The same by batch size, of calls whose requests are all alike; a key for each kind of request."""

    def allowed(self, names: Sequence[str], pooling_type: str = "") -> int:
        """How often a call may wait; that of a whole pooler as often as the methods that it calls."""
        if pooling_type:
            return self.subject.sync_budget(pooling_type).allowed(len(names))
        requests = self.world.requests
        groups = [list(group) for _, group in groupby(names, key=lambda name: requests[name].task)]
        return sum(
            budget.allowed(len(group)) for group in groups for budget in self._budgets(self.world.requests[group[0]])
        )

    def _budgets(self, request: Request) -> list[SyncBudget]:
        """Those of the methods that the request's task calls: one, or two for BGE-M3's."""
        kinds = [self.world.scenario.pooling_type(request)]
        if request.task == DENSE_AND_SPARSE:
            kinds.append(self.world.scenario.options.tok_pooling_type)
        return [self.subject.sync_budget(kind) for kind in kinds]

    def keep(
        self, record: Record, names: Sequence[str], computed: dict[str, int], computed_before: dict[str, int]
    ) -> None:
        """Keep a call's record."""
        self.records.append(record)
        if self.world.device.type != "cpu":
            kinds = {
                (msgspec.structs.replace(self.world.requests[name], name="_"), computed_before[name], computed[name])
                for name in names
            }
            if len(kinds) == 1:
                self._alike.setdefault(kinds.pop(), {})[len(names)] = record

    def growth(self) -> str | None:
        """What is wrong if calls that differ in batch size alone wait ever more often, or None."""
        for (request, _, _), by_size in self._alike.items():
            declared = sum(budget.per_request for budget in self._budgets(request))
            broken = contracts.waits_do_not_grow(by_size, declared)
            if broken:
                return broken
        return None
