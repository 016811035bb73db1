"""A pooler that is wrong by design: a campaign that doesn't catch it checks nothing."""

from typing import Any

import torch

from impl.config import PoolerConfig, PoolFn, Subject
from impl.hostsplit import HostSplit


def _build(config: PoolerConfig, _: object) -> PoolFn:
    right: PoolFn = HostSplit(config).method("ALL")

    def pool(hidden_states: torch.Tensor, metadata: Any) -> list[torch.Tensor | None]:
        outputs = right(hidden_states, metadata)
        # The first row of each result is its second: a start that is off by one.
        return [rows if rows is None else torch.cat([rows[1:2], rows[1:]]) for rows in outputs]

    return pool


CANARY = Subject("canary", _build, supports=frozenset({"ALL"}), about="wrong by design")
