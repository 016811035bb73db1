"""Subjects in files of their own, as users write them: the same pooler right, and with one mistake or another."""

from pathlib import Path
from typing import Final

RIGHT: Final = """
import torch


def factory(config):
    def pool(hidden_states, metadata):
        cursor = metadata.get_pooling_cursor()
        chunks = hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())
        outputs = []
        for state, chunk, done in zip(metadata.pooling_states, chunks, cursor.get_finished_mask()):
            state.hidden_states_cache.append(chunk.clone())
            outputs.append(torch.cat(state.hidden_states_cache) if done else None)
            if done:
                state.clean()
        return outputs

    return pool
"""

SLIP: Final = {
    "starts early": (
        "chunks = hidden_states.split_with_sizes(cursor.num_scheduled_tokens_cpu.tolist())",
        (
            "firsts, lasts = cursor.first_token_indices_gpu.tolist(), cursor.last_token_indices_gpu.tolist()\n        "
            "chunks = [hidden_states[max(first - 1, 0) : last + 1] for first, last in zip(firsts, lasts)]"
        ),
    ),
    "rolls the rows": ("chunks = hidden_states", "chunks = hidden_states.roll(1, 0)"),
    "loses chunks": ("torch.cat(state.hidden_states_cache) if", "chunk.clone() if"),
    "keeps a view": ("append(chunk.clone())", "append(chunk)"),
    "keeps the buffer": ("append(chunk.clone())", "append(hidden_states.clone()[:len(chunk)])"),
    "never clears": ("state.clean()", "pass"),
    "hands out views": (
        "outputs.append(torch.cat(state.hidden_states_cache)",
        "kept = state.hidden_states_cache; outputs.append((chunk if len(kept) == 1 else torch.cat(kept))",
    ),
    "answers too soon": ("if done else None", "if True else None"),
    "drops the last": ("return outputs", "return outputs[:-1] if len(outputs) > 2 else outputs"),
    "widens": ("torch.cat(state.hidden_states_cache) if", "torch.cat(state.hidden_states_cache).double() if"),
    "edits its input": ("return outputs", "hidden_states.mul_(2)\n        return outputs"),
    "raises": ("outputs = []", "outputs = []\n        assert len(chunks) < 3"),
    "reverses": ("chunks = hidden_states", "chunks = hidden_states[: cursor.num_scheduled_tokens_cpu.sum()].flip(0)"),
}
"""By name: what of `RIGHT` is replaced by what."""


def write(directory: Path, slip: str = "") -> str:
    """Write the pooler, with a slip if one is named, and return the spec by which it is loaded."""
    source = RIGHT
    if slip:
        was, becomes = SLIP[slip]
        assert was in source
        source = source.replace(was, becomes)
    path = directory / "mine.py"
    path.write_text(source)
    return f"{path}:factory"
