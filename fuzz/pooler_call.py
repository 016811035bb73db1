"""One call of a pooler within a step, and the mistakes that a caller can make in it."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from impl.config import PoolFn
from oracle.metadata import replace_indices
from oracle.scenario import Malformed


@dataclass(frozen=True)
class PoolerCall:
    """One call within a step: the pooler, what it is handed, and whether it may refuse."""

    pool: PoolFn
    hidden_states: torch.Tensor
    metadata: Any
    names: Sequence[str]
    pooling_type: str = ""
    """What the pooler should compute; empty for a whole pooler, which serves several."""
    spare_rows: bool = False
    may_reject: bool = False
    well_formed: bool = True


def malform(call: PoolerCall, kind: Malformed) -> PoolerCall:
    """The same call with a caller's mistake in it; unchanged where the mistake has no room."""
    if not call.names:
        return call
    cursor = copy.copy(call.metadata.pooling_cursor)
    rows = call.hidden_states
    last_row = int(cursor.last_token_indices_gpu[-1])
    match kind:
        case "missing-scheduled-counts":
            del cursor.num_scheduled_tokens_cpu
        case "counts-on-device":
            device = rows.device if rows.device.type != "cpu" else torch.device("meta")
            cursor.num_scheduled_tokens_cpu = cursor.num_scheduled_tokens_cpu.to(device)
        case "gap":
            if len(call.names) < 2:
                return call
            gap_at = int(cursor.first_token_indices_gpu[-1])
            rows = torch.cat([rows[:gap_at], torch.full_like(rows[:1], torch.nan), rows[gap_at:]])
            moved = torch.zeros_like(cursor.first_token_indices_gpu)
            moved[-1] = 1
            cursor = replace_indices(cursor, moved)
        case "short-rows":
            rows = rows[:last_row]
    metadata = dataclasses.replace(call.metadata, pooling_cursor=cursor)
    return dataclasses.replace(call, hidden_states=rows, metadata=metadata, may_reject=True, well_formed=False)
