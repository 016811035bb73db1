"""A model that is made on the spot, what is asked of it, and what it owes: nothing is downloaded.

Its weights are drawn at full scale, not vLLM's dummy ones of 1e-3, under which attention would hardly matter.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]

HIDDEN: Final = 64
INNER: Final = 128
VOCABULARY: Final = 128
LAYERS: Final = 2
MAX_MODEL_LEN: Final = 64
BLOCK_SIZE: Final = 32
"""The only block sizes of vLLM's attention on a CPU are its multiples."""
TASKS: Final = ("embed", "token_embed")

BUDGET: Final = 2.0**-16
"""How far a number of a unit vector may be off: what a float32 sum over the widest layer, of 128 terms, may lose."""

LENGTHS: Final = (1, 3, 9, 20, 33, 50)
PROMPTS: Final = [
    *([3 + (7 * place + at * at) % 100 for at in range(length)] for place, length in enumerate(LENGTHS)),
    # Begins as the one before it does, for more than a block: a hit in the prefix cache.
    [3 + (7 * (len(LENGTHS) - 1) + at * at) % 100 for at in range(40)] + [99] * 5,
]


def make(directory: Path) -> None:
    """Write config, tokenizer and weights of a Llama model."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (directory / "config.json").write_text(json.dumps(_config()))
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{token_id}": token_id for token_id in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(directory)
    random = np.random.default_rng(1)
    weights = {
        name: np.ones(shape) if len(shape) == 1 else random.standard_normal(shape) / shape[-1] ** 0.5
        for name, shape in _shapes().items()
    }
    save_file(
        {name: weight.astype(np.float32) for name, weight in weights.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )


def expected(directory: Path) -> dict[str, list[Rows]]:
    """What each task owes each prompt, unit vectors: by transformers' own model, in float64."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory, dtype=torch.float64)
    with torch.no_grad():
        states = [model(torch.tensor([prompt])).last_hidden_state[0].numpy() for prompt in PROMPTS]
    rows = [state / np.linalg.norm(state, axis=-1, keepdims=True) for state in states]
    return {"embed": [own[-1] for own in rows], "token_embed": rows}


def wrong(due: list[Rows], got: list[Rows]) -> list[str]:
    """What is wrong with the results of all prompts, in words; nothing if they are right."""
    told = [] if len(due) == len(got) else [f"{len(got)} results for {len(due)} prompts"]
    for place, (own, result) in enumerate(zip(due, got, strict=False)):
        if own.shape != result.shape:
            told.append(f"prompt {place} got a result of shape {result.shape}, but should get {own.shape}")
        elif not (off := float(np.abs(own - result).max())) <= BUDGET:
            told.append(f"prompt {place} is off by {off:.1e}, but may be by {BUDGET:.1e}")
    return told


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCABULARY, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        own = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"} | {
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }
        shapes.update({f"layers.{layer}.{name}.weight": shape for name, shape in own.items()})
    return shapes
