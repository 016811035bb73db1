"""Right heads under a filter of BOS and EOS that does something else."""

from collections.abc import Sequence

import torch

from impl.special import without_special_tokens
from oracle.metadata import PoolingMetadata
from tests.zoo.joints import Filtering
from tests.zoo.register import bad_layer


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class SqueezesTheTokensToo(Filtering):
    """`squeeze()` makes a vector of one score a token, and loses the tokens' axis where one token is left."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        first, last = (
            int(token_ids[at]) == special for at, special in zip((0, -1), self.special_token_ids, strict=True)
        )
        return rows[int(first) : len(rows) - int(last)].squeeze()


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class FiltersWithinThePrompt(Filtering):
    """A mask over the ids drops special tokens wherever they stand."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        keep = [token_id not in self.special_token_ids for token_id in token_ids.tolist()]
        return rows[keep].squeeze(-1)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class TakesTheEndsForSpecial(Filtering):
    """Every tokenizer adds both, so the ids are not looked at."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return rows[1:-1].squeeze(-1)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class FiltersForgettingEos(Filtering):
    """The filter was written for a model that has no EOS."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return without_special_tokens(rows, token_ids, self.special_token_ids[0], None)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class ReadsThePaddedIds(Filtering):
    """The last id is read off the padded matrix, where it is a longer prompt's padding."""

    def token_ids(self, group: PoolingMetadata) -> Sequence[torch.Tensor]:
        assert group.prompt_token_ids_cpu is not None
        return list(group.prompt_token_ids_cpu)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class IdsOfTheFirst(Filtering):
    """The prompts of a batch are taken to begin and end alike."""

    def token_ids(self, group: PoolingMetadata) -> Sequence[torch.Tensor]:
        ids = super().token_ids(group)
        return [ids[0]] * len(ids)


@bad_layer("row-count", serves=("ALL",), parts=("bos-eos-filter",))
class KeepsTheScoresAxis(Filtering):
    """One score a token is handed out as a matrix of one column, which callers take for embeddings."""

    def one_filtered(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return super().one_filtered(rows, token_ids).reshape(-1, rows.shape[-1])
