"""What pooling is: one request's rows in, its result out.

The reference takes all rows of one finished request at once, so nothing in it can depend on a
schedule, a batch or a buffer. Whatever the engine did, the outcome must be this.
"""

from typing import Final

import msgspec
import torch

from oracle.approx import Approx
from oracle.rows import Linear
from oracle.scenario import DENSE_AND_SPARSE, Head, Options, PoolingType, Request

Expected = torch.Tensor | Approx
"""Rows that must match bit for bit, or a value with an error budget."""


def pool(pooling_type: PoolingType, rows: torch.Tensor, request: Request) -> Expected:
    """The pooled rows of one finished request.

    Args:
        pooling_type: what to compute.
        rows: (prompt_len, hidden_size), the request's hidden states in prompt order; for LAST, leading
            rows may be missing (found in the prefix cache).
        request: whose `step_tag_id` and `returned_token_ids` STEP heeds.

    Returns:
        ALL: (prompt_len, hidden_size). STEP: (tagged tokens, returned columns). CLS, LAST:
        (hidden_size,). MEAN: float32 (hidden_size,).
    """
    match pooling_type:
        case "ALL":
            return rows
        case "STEP":
            if request.returned_token_ids is not None:
                rows = rows[:, list(request.returned_token_ids)]
            if request.step_tag_id is not None:
                rows = rows[[token_id == request.step_tag_id for token_id in request.prompt_token_ids]]
            return rows
        case "CLS":
            return rows[0]
        case "LAST":
            return rows[-1]
        case "MEAN":
            return Approx.exact(rows).mean()


def serve(rows: torch.Tensor, request: Request, options: Options) -> Approx:
    """What the whole layer hands out for the rows (prompt_len, hidden_size) of one finished request.

    The pooled rows through their head, less those of BOS and EOS. BGE-M3's task has in one row the vector of
    embed and, behind it, what token_classify makes of the tokens.
    """
    if request.task == DENSE_AND_SPARSE:
        vector, scores = (
            serve(rows, msgspec.structs.replace(request, task=task), options) for task in ("embed", "token_classify")
        )
        return vector.joined(scores)
    pooling_type = options.tok_pooling_type if request.is_token_task else options.seq_pooling_type
    result = apply_head(pool(pooling_type, rows, request), request, options.head, options.seed)
    if options.filters_special_tokens and request.is_token_task:
        return without_special_tokens(result, request, options)
    return result


def apply_head(pooled: Expected, request: Request, head: Head, seed: int) -> Approx:
    """What the learned layers make of pooled rows.

    embed tasks: cast, projector, cut to `dimensions`, then L2 norm if `use_activation`. classify
    tasks: cast, for `classify` the dense layer and its tanh, classifier, `(logits - mean) / sigma`, then
    the activation if `use_activation`. Learned layers always run: the flag is for the last activation alone.
    """
    result = pooled if isinstance(pooled, Approx) else Approx.exact(pooled)
    if request.chunk_size is not None:
        # Without a head of its own dtype chunks have that of the tokens.
        result = result.means(request.chunk_size).to(result.dtype if head.head_dtype is None else torch.float32)
    if head.head_dtype is not None:
        result = result.to(getattr(torch, head.head_dtype))
    if request.task in ("embed", "token_embed"):
        if head.embedding_size is not None:
            result = _through(projector(head.embedding_size, seed), result)
        if request.dimensions is not None:
            result = result.cut(request.dimensions)
        return result if request.use_activation is False else result.normalize()
    if head.dense and request.task == "classify":
        result = _through(dense(result.shape[-1], seed), result).tanh()
    if head.num_labels is not None:
        result = _through(classifier(head.num_labels, seed), result)
    if head.logit_mean is not None:
        result = result.minus(head.logit_mean)
    if head.logit_sigma is not None:
        result = result.over(head.logit_sigma)
    if request.use_activation is False:
        return result
    return activated(result, head)


def activated(logits: Approx, head: Head) -> Approx:
    """What the model's config makes of logits: by its problem type, else by the module it names, else as labels.

    Labels that exclude each other take a softmax, of which one label has no use: it takes a sigmoid.
    """
    match head.problem_type or head.activation_fn:
        case "regression" | "Identity":
            return logits
        case "multi_label_classification" | "Sigmoid":
            return logits.sigmoid()
        case "Tanh":
            return logits.tanh()
    return logits.softmax() if logits.shape[-1] >= 2 else logits.sigmoid()


def without_special_tokens(result: Approx, request: Request, options: Options) -> Approx:
    """A token task's result less the rows of BOS at the prompt's start and of EOS at its end.

    Only rows go: (tokens left, width) however few are left, or (tokens left,) where the width is 1, which is
    a score a token. The rows of late chunking are no tokens' and stay as they are.
    """
    if request.chunk_size is not None:
        return result
    ids = request.prompt_token_ids
    start, stop = int(ids[0] == options.bos_token_id), len(ids) - int(ids[-1] == options.eos_token_id)
    return result.rows(start, max(start, stop)).squeezed()


def maxsim(query: Expected, document: Expected) -> Approx:
    """A document's score: over the query's rows, the sum of the largest product with one of the document's."""
    left, right = (rows if isinstance(rows, Approx) else Approx.exact(rows) for rows in (query, document))
    return left.maxsim(right)


NO_SCORE: Final = Approx.exact(torch.zeros(()))
"""What a query is answered with, its rows being kept for its documents."""


def projector(embedding_size: int, seed: int) -> Linear:
    """The projector of a scenario with this seed."""
    return Linear(embedding_size, 2 * (seed % 8))


def classifier(num_labels: int, seed: int) -> Linear:
    """The classifier of a scenario with this seed."""
    return Linear(num_labels, 2 * (seed % 8) + 1)


def dense(hidden_size: int, seed: int) -> Linear:
    """The dense layer of a scenario with this seed; its outputs are small, where tanh tells them apart."""
    return Linear(hidden_size, 16 + seed % 8, 1 / 256)


def _through(layer: Linear, rows: Approx) -> Approx:
    return rows.linear(layer.matrix(rows.shape[-1]))
