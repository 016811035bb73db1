"""Poolers around a pooler: what a model may have besides methods, heads and dispatch."""

import torch


def chunk_means(rows: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Late chunking: float32 means (chunks, width) over `chunk_size` rows each; the last chunk takes what is left."""
    return torch.stack([chunk.mean(dim=0, dtype=torch.float32) for chunk in torch.split(rows, chunk_size)])


def without_special_tokens(
    rows: torch.Tensor, token_ids: torch.Tensor, bos_token_id: int | None, eos_token_id: int | None
) -> torch.Tensor:
    """A token task's rows less those of BOS at the prompt's start and of EOS at its end.

    Args:
        rows: (prompt_len, width), a view of which is returned.
        token_ids: (prompt_len,) on the host.
        bos_token_id: None leaves the start as it is.
        eos_token_id: None leaves the end as it is.

    Returns:
        (tokens left, width), or (tokens left,) where the width is 1.
    """
    first, last = int(token_ids[0]), int(token_ids[-1])
    start, stop = int(first == bos_token_id), len(token_ids) - int(last == eos_token_id)
    return rows[start : max(start, stop)].squeeze(-1)
