"""Verification of pooling params: what a model can't deliver is refused before the request is scheduled."""

from impl.config import ModelConfig
from oracle.metadata import PoolingParams

EMBED_TASKS = ("embed", "token_embed")


def verify(params: PoolingParams, model_config: ModelConfig) -> None:
    """Fill in the defaults of a request's params.

    Raises:
        ValueError: the model can't deliver what they ask for.
    """
    if params.use_activation is None:
        params.use_activation = True
    if model_config.tok_pooling_type != "STEP" and (params.step_tag_id, params.returned_token_ids) != (None, None):
        raise ValueError("step_tag_id and returned_token_ids are for a model that pools by steps")
    if params.late_chunking_params is not None and params.task != "token_embed":
        raise ValueError(f"late chunking is for token_embed, not for {params.task}")
    if params.dimensions is None:
        return
    if params.task not in EMBED_TASKS:
        raise ValueError(f"dimensions are for {' and '.join(EMBED_TASKS)}, not for {params.task}")
    if not model_config.is_matryoshka:
        raise ValueError("dimensions are for a model whose embeddings may be cut")
    if not 1 <= params.dimensions <= model_config.embedding_size:
        raise ValueError(f"dimensions must be from 1 to {model_config.embedding_size}, not {params.dimensions}")
    widths = model_config.matryoshka_dimensions
    if widths is not None and params.dimensions not in widths:
        raise ValueError(f"dimensions must be one of {widths}, not {params.dimensions}")
