"""What a contract looks at: a call of a pooler, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from oracle.device.memory import data
from oracle.device.record import Record
from oracle.reference import Expected

INDEX_DTYPES: Final = (torch.int32, torch.int64)
HOST_FIELDS: Final = ("prompt_lens_cpu", "seq_lens_cpu", "num_scheduled_tokens_cpu")
CURSOR_FIELDS: Final = ("first_token_indices_gpu", "last_token_indices_gpu", *HOST_FIELDS)


@dataclass
class Call:
    """One call of a pooler: what it is handed, read once into plain lists.

    `names` are the batch's requests, for messages. `computed_before` holds how many tokens of each
    request were computed before this step, where the checker knows. `spare_rows` says that rows
    beyond the scheduled ones are expected (padding, or the rows of other groups).
    """

    hidden_states: torch.Tensor
    metadata: Any
    names: Sequence[str]
    computed_before: Sequence[int] | None = None
    spare_rows: bool = False
    states: list[Any] = field(init=False)
    """The requests' pooling states, whatever becomes of the metadata's list of them."""
    token_ids: torch.Tensor | None = field(init=False)
    """A copy of the host's prompt token ids, if there are any."""
    cursor: list[list[int]] = field(init=False)
    """The lists below, in the order of `CURSOR_FIELDS`, as they were when the call was made."""
    first: list[int] = field(init=False)
    """Row index of each request's first token in this step."""
    last: list[int] = field(init=False)
    """Row index of each request's last token in this step."""
    scheduled: list[int] = field(init=False)
    """Tokens of each request in this step."""
    prompt_lens: list[int] = field(init=False)
    """Prompt length of each request."""
    seq_lens: list[int] = field(init=False)
    """Tokens of each request computed so far, this step's included."""

    def __post_init__(self) -> None:
        self.states = list(self.metadata.pooling_states)
        token_ids = getattr(self.metadata, "prompt_token_ids_cpu", None)
        self.token_ids = None if token_ids is None else token_ids.clone()
        self.cursor = self.cursor_values()
        self.first, self.last, self.prompt_lens, self.seq_lens, self.scheduled = self.cursor

    def cursor_values(self) -> list[list[int]]:
        """The cursor's lists as they are now, in the order of `CURSOR_FIELDS`."""
        cursor = getattr(self.metadata, "pooling_cursor", None)
        return [_ints(getattr(cursor, name, None)) for name in CURSOR_FIELDS]


@dataclass
class Outcome:
    """What a call did, beside what it should have done; every list is n requests long.

    `expected` holds None for a request that must not have a result yet and `ANYTHING` for one whose
    result nobody reads. `cursor_before` is None where the cursor was malformed. `kept_rows` is how many
    rows of hidden states a request may retain. `origin` names a row.
    """

    call: Call
    outputs: Any
    expected: Sequence["Expected | Anything | None"]
    hidden_states_before: torch.Tensor
    cursor_before: list[list[int]] | None
    params_before: Sequence[Any]
    kept_rows: Sequence[int]
    must_own_outputs: bool
    origin: Callable[[torch.Tensor], str]
    finished: Sequence[bool]
    record: Record = field(default_factory=Record)
    """What the call asked of the device."""
    allowed_waits: int = 0
    """How often the host may wait for the device."""

    results: list[Any] = field(init=False)
    """One output a request, or fewer or more if the pooler got the number wrong."""
    held: list[list[torch.Tensor]] = field(init=False)
    """The tensors in each request's state after the call."""

    def __post_init__(self) -> None:
        there = isinstance(self.outputs, (list, tuple)) or (
            isinstance(self.outputs, torch.Tensor) and self.outputs.dim() > 0
        )
        self.results = list(self.outputs) if there else []
        self.held = [tensors_in(state) for state in self.call.states]

    def pairs(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, expected and actual result of each request that should have one."""
        for name, expected, actual in zip(self.call.names, self.expected, self.results, strict=True):
            if expected is not None and expected is not ANYTHING:
                yield name, expected, actual


class Anything:
    """The type of `ANYTHING`."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final = Anything()


def tensors_in(state: Any) -> list[torch.Tensor]:
    """Every tensor or numeric array that a pooling state holds, in whatever attribute, list or dict."""
    found: list[torch.Tensor] = []
    for value in (vars(state) if hasattr(state, "__dict__") else state).values():
        _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        found.append(torch.from_numpy(value))
    elif isinstance(value, (list, tuple, set, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, found)


def _ints(tensor: torch.Tensor | None) -> list[int]:
    """The values of a well-formed field, or none."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return []
    values: list[int] = data(tensor).tolist()
    return values
