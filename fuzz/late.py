"""The worker around late interaction: who is registered, who is gone, and whose rows may be kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.world import World
from impl.config import LateInteraction, Outputs, PoolFn
from oracle import contracts
from oracle.contracts import tensors_in
from oracle.scenario import Step


@dataclass(frozen=True)
class Scored:
    """A pooler with scores in place of the rows of documents, for one step."""

    pool: PoolFn
    late: LateInteraction
    names: Sequence[str]
    finished: Sequence[bool]

    def __call__(self, hidden_states: torch.Tensor, metadata: Any) -> Outputs:
        """Pool, then score."""
        return self.late.score(self.pool(hidden_states, metadata), metadata.pooling_params, self.names, self.finished)


class Scoring:
    """Late interaction in the middle of a scenario."""

    def __init__(self, world: World, late: LateInteraction, params: Mapping[str, Any]) -> None:
        self.world = world
        self.late = late
        self.params = params
        self.registered: set[str] = set()
        self.kept: set[str] = set()
        """Queries that have finished."""
        self.done: set[str] = set()
        """Requests that have finished or are gone."""
        self._leaving: list[str] = []
        self._deserted: set[str] = set()
        """Queries of whose documents some were aborted: their client is gone, once the others are done."""

    def begin(self, step: Step) -> str | None:
        """Tell who has left since the last step and who is new in this one; say what is kept but should not be."""
        self.late.gone([*self._leaving, *step.aborted])
        self._leaving = []
        self._deserted.update(query for name in step.aborted if (query := self.world.requests[name].query))
        self.done.update(step.aborted)
        over = {query for query, own in self.world.documents.items() if self.done.issuperset((query, *own))}
        if released := sorted(over & self._deserted):
            self.late.release(released)
            self._deserted.difference_update(released)
        self.registered.difference_update(step.preempted)
        for name, _ in step.scheduled:
            if name not in self.registered:
                self.late.register(name, self.params[name])
                self.registered.add(name)
        needed = [query for query in self.world.documents if query in self.kept - over]
        return contracts.query_is_let_go(len(tensors_in(self.late.kept())), needed)

    def around(self, pool: PoolFn, names: Sequence[str], finished: Sequence[bool]) -> PoolFn:
        """The pooler with the scores in place of the rows."""
        return Scored(pool, self.late, names, finished)

    def too_early(self, names: Sequence[str], is_finished: Callable[[str], bool]) -> bool:
        """Whether a document finishes whose query has not done so in an earlier step; it may be refused."""
        queries = (self.world.requests[name].query for name in names if is_finished(name))
        return any(query is not None and query not in self.kept for query in queries)

    def end(self, finished: Sequence[str]) -> None:
        """Note who has finished in a step."""
        self._leaving = list(finished)
        self.kept.update(name for name in finished if name in self.world.documents)
        self.done.update(finished)
