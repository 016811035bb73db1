"""As much of a model's config as a pooling layer reads while it is made, under the names that releases read."""

from types import SimpleNamespace
from typing import Any

import torch

from impl.config import PoolerConfig


def model_config(config: PoolerConfig) -> Any:
    """What stands for a `ModelConfig`: dtype and projector of the head, `hf_config` and `pooler_config`."""
    head = config.head
    hf_config = SimpleNamespace(
        num_labels=head.num_labels,
        problem_type=head.problem_type,
        # The weights of a dense layer, which are loaded later, know how wide they are.
        hidden_size=1,
    )
    if head.activation_fn is not None:
        # As sentence-transformers writes it; configs of others have no such key.
        module = getattr(torch.nn, head.activation_fn)
        hf_config.sentence_transformers = {"activation_fn": f"{module.__module__}.{module.__name__}"}
    return SimpleNamespace(
        head_dtype=head.head_dtype,
        projector=head.projector,
        hf_config=hf_config,
        pooler_config=pooler_config(config, ""),
    )


def pooler_config(config: PoolerConfig, pooling_type: str) -> Any:
    """What stands for a release's `PoolerConfig`; until 0.13 it had one `pooling_type` for all of a model's tasks."""
    head = config.head
    return SimpleNamespace(
        pooling_type=pooling_type,
        tok_pooling_type=config.tok_pooling_type,
        seq_pooling_type=config.seq_pooling_type,
        get_tok_pooling_type=lambda: config.tok_pooling_type,
        get_seq_pooling_type=lambda: config.seq_pooling_type,
        logit_mean=head.logit_mean,
        logit_sigma=head.logit_sigma,
        # Until 0.19 there was a bias, which is the mean by another name, and no sigma.
        logit_bias=head.logit_mean,
    )
