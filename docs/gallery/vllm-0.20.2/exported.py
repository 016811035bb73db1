# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""In step 0, got 2 outputs for 1 requests (a).

A pooler returns one entry for each request of the batch, in batch order.
Outputs are matched to requests by position alone.

Found on vllm==0.20.2 by Poolproof.
"""

import os

import numpy as np
import torch

if not torch.accelerator.is_available():
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # Before vLLM looks for a platform.

from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.pooler.tokwise.methods import get_tok_pooling_method  # noqa: E402
from vllm.pooling_params import PoolingParams  # noqa: E402
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates  # noqa: E402


def test_one_output_per_request():
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    config.scheduler_config.enable_chunked_prefill = True
    config.scheduler_config.async_scheduling = False
    with set_current_vllm_config(config):
        pooler = get_tok_pooling_method("STEP")

    # The hidden states of each prompt, one row a token.
    a = torch.tensor([[113.0], [100.0]], dtype=torch.float32)
    a_params = PoolingParams(task="token_embed", use_activation=True)
    a_state = PoolingStates()

    # Step 0: scheduled tokens: a 1.
    hidden_states = a[0:1].clone()
    metadata = pooling_metadata(
        [a_params],
        [a_state],
        prompt_lens=[2],
        scheduled=[1],
        seq_lens=[1],
        token_ids=[[1, 1]],
    )
    outputs = pooler(hidden_states, metadata)
    assert len(outputs) == 1
    assert outputs[0] is None


def pooling_metadata(params, states, prompt_lens, scheduled, seq_lens, token_ids):
    """What the engine tells a pooler about the requests of a step."""
    dtype = torch.int32
    metadata = PoolingMetadata(
        prompt_lens=torch.tensor(prompt_lens, dtype=dtype),
        prompt_token_ids=torch.tensor(token_ids),
        prompt_token_ids_cpu=torch.tensor(token_ids),
        pooling_params=params,
        pooling_states=states,
    )
    metadata.build_pooling_cursor(
        np.asarray(scheduled, dtype=np.int32),
        torch.tensor(seq_lens, dtype=dtype),
        torch.device("cpu"),
    )
    return metadata
