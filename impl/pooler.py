"""The whole layer over a set of methods: dispatch over the tasks of a step, then each task's head."""

from collections.abc import Sequence

import torch

from impl.config import HeadConfig, Outputs, PoolerConfig, PoolFn
from impl.methods import Methods
from impl.special import without_special_tokens
from oracle.metadata import PoolingMetadata, PoolingParams, task_groups

TOKEN_TASKS = ("token_embed", "token_classify")


class Pooler:
    """Serves embed, classify, token_embed and token_classify, mixed within a step."""

    def __init__(self, config: PoolerConfig, methods: Methods) -> None:
        self.rows = config.rows
        self.head = config.head
        self.special_token_ids = config.bos_token_id, config.eos_token_id
        self.token_method: PoolFn = methods.method(config.tok_pooling_type)
        self.sequence_method: PoolFn = methods.method(config.seq_pooling_type)

    def __call__(self, hidden_states: torch.Tensor, metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """Pool a step of mixed tasks.

        Args:
            hidden_states: (rows, hidden_size).
            metadata: of all the step's requests.

        Returns:
            One entry a request, in batch order.
        """
        outputs: list[torch.Tensor | None] = []
        for task, group_rows, group in task_groups(hidden_states, metadata, self.rows):
            method = self.token_method if task in TOKEN_TASKS else self.sequence_method
            results = apply_head(task, method(group_rows, group), group.pooling_params, self.head)
            outputs.extend(self.filtered(results, group) if task in TOKEN_TASKS else results)
        return outputs

    def filtered(self, results: Outputs, group: PoolingMetadata) -> Outputs:
        """A token task's results without the rows of BOS and EOS; None stays None."""
        bos_token_id, eos_token_id = self.special_token_ids
        if bos_token_id is None and eos_token_id is None:
            return results
        return [
            None if rows is None else without_special_tokens(rows, token_ids, bos_token_id, eos_token_id)
            for rows, token_ids in zip(results, group.get_prompt_token_ids_cpu(), strict=True)
        ]


def apply_head(
    task: str, pooled: Outputs, params: Sequence[PoolingParams], head: HeadConfig
) -> list[torch.Tensor | None]:
    """Each request's pooled rows through the head of its task; None stays None."""
    layer = {"embed": _embed, "token_embed": _embed, "classify": _classify, "token_classify": _score}[task]
    return [None if rows is None else layer(rows, own, head) for rows, own in zip(pooled, params, strict=True)]


def _embed(rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    rows = _cast(rows, head)
    if head.projector is not None:
        rows = head.projector(rows)
    if params.dimensions is not None:
        rows = rows[..., : params.dimensions]
    # The default eps is zero in float16, where it turns a row of zeros into nan.
    return (
        torch.nn.functional.normalize(rows, dim=-1, eps=torch.finfo(rows.dtype).tiny) if params.use_activation else rows
    )


def _classify(rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    return _score(rows if head.dense is None else head.dense(_cast(rows, head)).tanh(), params, head)


def _score(rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    logits = _cast(rows, head)
    if head.classifier is not None:
        logits = head.classifier(logits)
    if head.logit_mean is not None:
        logits = logits - head.logit_mean
    if head.logit_sigma is not None:
        logits = logits / head.logit_sigma
    if not params.use_activation:
        return logits
    return logits.softmax(dim=-1) if logits.shape[-1] >= 2 else logits.sigmoid()


def _cast(rows: torch.Tensor, head: HeadConfig) -> torch.Tensor:
    return rows if head.head_dtype is None else rows.to(head.head_dtype)
