"""The whole layer over a set of methods: dispatch over the tasks of a step, then each task's head."""

from collections.abc import Sequence

import torch

from impl.config import HeadConfig, Outputs, PoolerConfig, PoolFn
from impl.methods import Methods
from impl.special import chunk_means, without_special_tokens
from oracle.metadata import PoolingMetadata, PoolingParams, task_groups

TOKEN_TASKS = ("token_embed", "token_classify")
EMBED_TASKS = ("embed", "token_embed")
DENSE_AND_SPARSE = "embed&token_classify"


class Pooler:
    """Serves embed, classify, token_embed and token_classify, mixed within a step, and BGE-M3's task."""

    def __init__(self, config: PoolerConfig, methods: Methods) -> None:
        self.rows = config.rows
        self.head = config.head
        self.config = config
        self.filters = filters(config)
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
            outputs.extend(self._serve(task, group_rows, group))
        return outputs

    def _serve(self, task: str, rows: torch.Tensor, group: PoolingMetadata) -> list[torch.Tensor | None]:
        if task == DENSE_AND_SPARSE:
            return joined(self._serve("embed", rows, group), self._serve("token_classify", rows, group))
        method = self.token_method if task in TOKEN_TASKS else self.sequence_method
        results = apply_head(task, method(rows, group), group.pooling_params, self.head)
        return filtered(results, group, self.config) if self.filters and task in TOKEN_TASKS else results


def joined(vectors: Outputs, scores: Outputs) -> list[torch.Tensor | None]:
    """Each request's vector with the scores of its tokens behind it, of whole prompts."""
    joined: list[torch.Tensor | None] = []
    for vector, of_tokens in zip(vectors, scores, strict=True):
        if vector is None or of_tokens is None:
            raise ValueError(f"{DENSE_AND_SPARSE} takes whole prompts")
        joined.append(torch.cat([vector.flatten(), of_tokens.flatten()]))
    return joined


def filters(config: PoolerConfig) -> bool:
    """Whether rows of BOS or EOS are to be taken out."""
    return config.bos_token_id is not None or config.eos_token_id is not None


def filtered(results: Outputs, group: PoolingMetadata, config: PoolerConfig) -> list[torch.Tensor | None]:
    """A token task's results without the rows of BOS and EOS; None stays None, and so do chunks."""
    return [
        rows
        if rows is None or params.late_chunking_params is not None
        else without_special_tokens(rows, token_ids, config.bos_token_id, config.eos_token_id)
        for rows, token_ids, params in zip(results, group.get_prompt_token_ids_cpu(), group.pooling_params, strict=True)
    ]


def apply_head(
    task: str, pooled: Outputs, params: Sequence[PoolingParams], head: HeadConfig
) -> list[torch.Tensor | None]:
    """Each request's pooled rows through the head of its task; None stays None."""
    results: list[torch.Tensor | None] = []
    for rows, own in zip(pooled, params, strict=True):
        if rows is not None:
            if own.late_chunking_params is not None:
                rows = chunked(rows, own, head)
            rows = finish(task, learned(task, rows, head), own, head)
        results.append(rows)
    return results


def chunked(rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    """The means over a prompt's chunks, for which the request asks, in the dtype in which the head goes on."""
    means = chunk_means(rows, params.late_chunking_params.chunk_size)
    return means.to(rows.dtype) if head.head_dtype is None else means


def learned(task: str, rows: torch.Tensor, head: HeadConfig) -> torch.Tensor:
    """The part of a head that is the same for every request: cast, learned layer, calibration."""
    if head.head_dtype is not None:
        rows = rows.to(head.head_dtype)
    if task in EMBED_TASKS:
        return rows if head.projector is None else head.projector(rows)
    if task == "classify" and head.dense is not None:
        rows = head.dense(rows).tanh()
    if head.classifier is not None:
        rows = head.classifier(rows)
    if head.logit_mean is not None:
        rows = rows - head.logit_mean
    return rows if head.logit_sigma is None else rows / head.logit_sigma


def finish(task: str, rows: torch.Tensor, params: PoolingParams, head: HeadConfig) -> torch.Tensor:
    """The part that a request's params decide: dimensions and activation, of which the model says which."""
    if task in EMBED_TASKS:
        if params.dimensions is not None:
            rows = rows[..., : params.dimensions]
        # The default eps is zero in float16, where it turns a row of zeros into nan.
        eps = torch.finfo(rows.dtype).tiny
        return torch.nn.functional.normalize(rows, dim=-1, eps=eps) if params.use_activation else rows
    if not params.use_activation:
        return rows
    match head.problem_type or head.activation_fn:
        case "regression" | "Identity":
            return rows
        case "multi_label_classification" | "Sigmoid":
            return rows.sigmoid()
        case "Tanh":
            return rows.tanh()
    return rows.softmax(dim=-1) if rows.shape[-1] >= 2 else rows.sigmoid()
