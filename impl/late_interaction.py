"""Late interaction: documents scored against the rows of a query, which are kept until the last of them is."""

from collections.abc import Sequence

import torch

from impl.config import Outputs
from oracle.metadata import PoolingParams


def maxsim(query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    """The sum over the query's rows (n, h) of the largest product with one of the document's (m, h); float32 ()."""
    return (query.float() @ document.float().T).amax(dim=-1).sum()


class MaxSim:
    """Scores documents one by one."""

    def __init__(self) -> None:
        self.rows: dict[str, torch.Tensor] = {}
        self.uses: dict[str, int] = {}
        self.query_of: dict[str, str] = {}

    def register(self, name: str, params: PoolingParams) -> None:
        """See `impl.config.LateInteraction`."""
        late = params.late_interaction_params
        if late is not None and late.mode == "score_doc":
            self.query_of[name] = late.query_key

    def gone(self, names: Sequence[str]) -> None:
        """See `impl.config.LateInteraction`."""
        for name in names:
            self.used(self.query_of.pop(name, None))

    def release(self, query_keys: Sequence[str]) -> None:
        """See `impl.config.LateInteraction`."""
        for key in query_keys:
            self.rows.pop(key, None)
            self.uses.pop(key, None)

    def score(
        self, outputs: Outputs, params: Sequence[PoolingParams], names: Sequence[str], finished: Sequence[bool]
    ) -> Outputs:
        """See `impl.config.LateInteraction`.

        Raises:
            ValueError: a document comes before its query.
        """
        results = list(outputs)
        for place, (rows, own, done) in enumerate(zip(outputs, params, finished, strict=True)):
            late = own.late_interaction_params
            if late is None or rows is None or not done:
                continue
            if late.mode == "cache_query":
                self.keep(late.query_key, late.query_uses or 1, rows)
                results[place] = rows.new_zeros((), dtype=torch.float32)
            elif late.query_key not in self.rows:
                raise ValueError(f"document {names[place]} comes before its query {late.query_key}")
            else:
                results[place] = self.one(self.rows[late.query_key], rows)
                self.used(self.query_of.pop(names[place], None))
        return results

    def keep(self, key: str, uses: int, rows: torch.Tensor) -> None:
        """Keep a query's rows, which may lie in the step's buffer."""
        self.rows[key] = rows.clone()
        self.uses[key] = uses

    def one(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        """One document's score."""
        return maxsim(query, document)

    def used(self, key: str | None) -> None:
        """One document less is to come; with the last, the query goes."""
        if key in self.uses:
            self.uses[key] -= 1
            if not self.uses[key]:
                self.release([key])

    def kept(self) -> "MaxSim":
        """See `impl.config.LateInteraction`."""
        return self
