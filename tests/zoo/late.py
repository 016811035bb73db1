"""Right poolers whose documents are scored, or whose queries are kept, in some other way."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from impl.config import Outputs
from impl.late_interaction import MaxSim, maxsim
from oracle.metadata import PoolingParams
from tests.zoo.register import bad_scoring


@bad_scoring("values")
class KeepsAView(MaxSim):
    """The query's rows are kept without a copy, and lie in the step's buffer where the head adds nothing."""

    def keep(self, key: str, uses: int, rows: torch.Tensor) -> None:
        self.rows[key], self.uses[key] = rows, uses


@bad_scoring("values")
class PadsDocumentsWithZeros(MaxSim):
    """Documents are padded to one length, and a zero is larger than what a negative product comes to."""

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        return super().one(query, pad(document, (0, 0, 0, 1)))


@bad_scoring("values")
class ScoresTheOtherWayRound(MaxSim):
    """The largest product is taken for each row of the document."""

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        return maxsim(document, query)


@bad_scoring("values")
class AveragesTheScore(MaxSim):
    """Scores are made comparable between queries, which nobody asked for."""

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        return super().one(query, document) / len(query)


@bad_scoring("values", "dtype-and-device")
class ScoresInTheRowsDtype(MaxSim):
    """The products are computed in half precision."""

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        return (query @ document.T).amax(dim=-1).sum().float()


@bad_scoring("values")
class LastQueryForAll(MaxSim):
    """The batch is taken to be of one client, whose query came last."""

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        return super().one(next(reversed(self.rows.values())), document)


@bad_scoring("accepts-valid-input")
class LetsGoAtTheFirstDocument(MaxSim):
    """A query is dropped once it was used."""

    def used(self, key: str | None) -> None:
        if key in self.uses:
            self.release([key])


@bad_scoring("query-is-let-go")
class NeverLetsGo(MaxSim):
    """A query is kept until a newer one of the same key takes its place."""

    def used(self, key: str | None) -> None:
        """Nothing is counted."""


@bad_scoring("query-is-let-go")
class CountsScoredDocumentsOnly(MaxSim):
    """A document that is aborted is none that was scored."""

    def gone(self, names: Sequence[str]) -> None:
        """Nothing is counted, and nobody hears of the client."""

    def release(self, query_keys: Sequence[str]) -> None:
        super().release([key for key in query_keys if not self.uses.get(key)])


@bad_scoring("query-is-let-go")
class NobodyHearsOfTheClient(MaxSim):
    """Documents that are aborted before they were scheduled were never known here."""

    def release(self, query_keys: Sequence[str]) -> None:
        super().release([key for key in query_keys if not self.uses.get(key)])


@bad_scoring("accepts-valid-input")
class ForgetsAcrossPreemption(MaxSim):
    """A request that is registered again was gone in between."""

    def register(self, name: str, params: PoolingParams) -> None:
        self.gone([name])
        super().register(name, params)


@bad_scoring("row-count")
class AnswersAQueryWithItsRows(MaxSim):
    """The rows of a query are kept and handed out as well."""

    def score(
        self, outputs: Outputs, params: Sequence[PoolingParams], names: Sequence[str], finished: Sequence[bool]
    ) -> Outputs:
        scored = super().score(outputs, params, names, finished)
        late = [own.late_interaction_params for own in params]
        return [
            rows if own is not None and own.mode == "cache_query" and rows is not None else result
            for rows, result, own in zip(outputs, scored, late, strict=True)
        ]
