# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""In step 0, request a got nan at [0], but should get 0 within 1.2e-07 (1 of 1
elements are off).

A request's result is its own rows, in prompt order, bit for bit or within the error
budget.
A wrong row has the right shape, so nothing downstream notices.

Found on vllm 0.33.0 by Poolproof.
"""

import os

import numpy as np
import torch

if not torch.accelerator.is_available():
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # Before vLLM looks for a platform.

from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.pooler.activations import PoolerNormalize  # noqa: E402
from vllm.model_executor.layers.pooler.seqwise.heads import EmbeddingPoolerHead  # noqa: E402
from vllm.model_executor.layers.pooler.seqwise.methods import get_seq_pooling_method  # noqa: E402
from vllm.model_executor.layers.pooler.seqwise.poolers import SequencePooler  # noqa: E402
from vllm.model_executor.layers.pooler.special import DispatchPooler  # noqa: E402
from vllm.pooling_params import PoolingParams  # noqa: E402
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates  # noqa: E402


def test_values():
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    config.scheduler_config.enable_chunked_prefill = True
    config.scheduler_config.async_scheduling = False
    with set_current_vllm_config(config):
        pooler = DispatchPooler(
            {
                "embed": SequencePooler(
                    get_seq_pooling_method("LAST"),
                    EmbeddingPoolerHead(
                        head_dtype=None,
                        projector=None,
                        activation=PoolerNormalize(),
                    ),
                ),
            }
        )

    # The hidden states of each prompt, one row a token.
    a = torch.tensor([[0.0]], dtype=torch.float16)
    a_params = PoolingParams(task="embed", use_activation=True)
    a_state = PoolingStates()

    # Step 0: scheduled tokens: a 1.
    hidden_states = a[0:1].clone()
    metadata = pooling_metadata(
        [a_params],
        [a_state],
        prompt_lens=[1],
        scheduled=[1],
        seq_lens=[1],
    )
    outputs = pooler(hidden_states, metadata)
    assert len(outputs) == 1
    assert outputs[0].dtype == torch.float16
    assert is_within(outputs[0], [0.0], [1.1920928955078125e-07])


def pooling_metadata(params, states, prompt_lens, scheduled, seq_lens):
    """What the engine tells a pooler about the requests of a step."""
    dtype = torch.int32
    metadata = PoolingMetadata(
        prompt_lens=torch.tensor(prompt_lens, dtype=dtype),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=params,
        pooling_states=states,
    )
    metadata.build_pooling_cursor(
        np.asarray(scheduled, dtype=np.int32),
        torch.tensor(seq_lens, dtype=dtype),
        torch.device("cpu"),
    )
    return metadata


def is_within(output, expected, budget):
    """Whether a result is the expected one, give or take its rounding budget."""
    output = output.double()
    expected = torch.tensor(expected, dtype=torch.float64)
    budget = torch.tensor(budget, dtype=torch.float64)
    if output.shape != expected.shape:
        return False
    same = (output == expected) | (output.isnan() & expected.isnan())
    return bool((same | ((output - expected).abs() <= budget)).all())
