"""The clients in front of an engine, as vLLM's scoring API has them.

One that wants documents scored sends the query, waits for its answer, then sends the documents. When it
goes, it takes all of them with it, and has the query's rows released.
"""

from collections.abc import Container, Sequence

from fuzz.world import World
from oracle.scenario import Arrival, Request


class Clients:
    """Who has sent what, and who is gone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: set[str] = set()
        self.gone: set[str] = set()

    def may_send(self, request: Request, arrival: Arrival, number: int, answered: Container[str]) -> bool:
        """Whether a request reaches the engine before this step."""
        name, query = request.name, request.query
        if arrival.at > number or name in self.sent or name in self.gone:
            return False
        return query is None or not arrival.waits or query in answered

    def leave(self, name: str, answered: Container[str]) -> tuple[list[str], str | None]:
        """A request's client is gone: what of it is under way, and the query to be released, if there is one."""
        query = self.world.requests[name].query or name
        documents = self.world.documents.get(query, ())
        going = [own for own in (query, *documents) if own not in answered and own not in self.gone]
        self.gone.update(going)
        return [own for own in going if own in self.sent], query if documents else None

    def to_come(self, coming: Container[str]) -> bool:
        """Whether a document is still to be sent, its query being among those who are under way or answered."""
        return any(
            request.query in coming and name not in self.sent and name not in self.gone
            for name, request in self.world.requests.items()
            if request.query is not None
        )

    def kept(self, answered: Container[str]) -> Sequence[str]:
        """The answered queries that documents may still be scored against."""
        return [
            query
            for query, documents in self.world.documents.items()
            if query in answered
            and any(document not in answered and document not in self.gone for document in documents)
        ]

    def too_early(self, finished: Sequence[str], answered: Container[str]) -> bool:
        """Whether one of these is a document whose query was not answered in an earlier step; it may be refused."""
        queries = (self.world.requests[name].query for name in finished)
        return any(query is not None and query not in answered for query in queries)
