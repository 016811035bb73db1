"""`guard(pooler)`: the same pooler, with the contracts enforced at each call.

For use inside a real engine while debugging. It reads the cursor back from the device and keeps a
copy of every unfinished request's rows, so it is slow by design: not for production.
"""

import copy
from collections.abc import Callable
from typing import Any, NoReturn, get_args
from weakref import WeakKeyDictionary, WeakSet

import torch

from oracle.contracts import AFTER, ANYTHING, BEFORE, Call, ContractError, Outcome, Violation, first_broken
from oracle.reference import Expected, pool
from oracle.rows import same_numbers
from oracle.scenario import PoolingType, Request


def raise_it(broken: ContractError) -> NoReturn:
    """What a guard does with a break, unless told otherwise."""
    raise broken


def guard(
    pooler: Any, pooling_type: PoolingType | None = None, on_broken: Callable[[ContractError], None] = raise_it
) -> "Guarded":
    """Wrap a pooler so that each call enforces the contracts.

    Args:
        pooler: callable as `(hidden_states, pooling_metadata)`.
        pooling_type: what it should compute; by default read off its class name (`AllPool`, ...).
            If neither says, everything but the values is checked.
        on_broken: called with each break; if it returns, the pooler's own output is handed on.
    """
    return Guarded(pooler, pooling_type or pooling_type_of(pooler), on_broken)


class Guarded(torch.nn.Module):
    """A pooler behind its contracts; other attributes are the pooler's own.

    Raises:
        ContractError: at the call that breaks a contract, naming it, unless `on_broken` does something else.
    """

    def __init__(
        self, pooler: Any, pooling_type: PoolingType | None, on_broken: Callable[[ContractError], None] = raise_it
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.pooling_type = pooling_type
        self.on_broken = on_broken
        self._seen: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()
        self._lost: WeakSet[Any] = WeakSet()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("pooler"), name)

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> Any:
        """Check the caller, pool, check the pooler.

        Raises:
            ContractError: a contract is broken.
        """
        names = [f"#{place}" for place in range(len(pooling_metadata.pooling_params))]
        try:
            call = Call(hidden_states, pooling_metadata, names)
            _raise_if(first_broken(BEFORE, call))
            expected = self._expect(call)
        except ContractError as broken:
            self.on_broken(broken)
            # Nobody knows which rows are whose, until these requests start over.
            self._lost.update(pooling_metadata.pooling_states)
            return self.pooler(hidden_states, pooling_metadata)
        hidden_states_before = hidden_states.clone()
        params_before = [copy.deepcopy(params) for params in pooling_metadata.pooling_params]
        outputs = self.pooler(hidden_states, pooling_metadata)
        finished = [seq == prompt for seq, prompt in zip(call.seq_lens, call.prompt_lens, strict=True)]
        violation = first_broken(
            AFTER,
            Outcome(
                call=call,
                outputs=outputs,
                expected=expected,
                hidden_states_before=hidden_states_before,
                cursor_before=call.cursor,
                params_before=params_before,
                kept_rows=call.prompt_lens,
                must_own_outputs=bool(getattr(self.pooler, "clone_finished", False)),
                origin=lambda row: _origin(hidden_states_before, row),
                finished=finished,
            ),
        )
        if violation is not None:
            self.on_broken(ContractError(violation))
        return outputs

    def _expect(self, call: Call) -> list[Any]:
        """What each request should get, from the rows handed over so far."""
        expected: list[Expected | Any | None] = []
        for place, state in enumerate(call.metadata.pooling_states):
            rows = call.hidden_states[call.first[place] : call.last[place] + 1]
            computed_before = call.seq_lens[place] - call.scheduled[place]
            if computed_before and state in self._lost:
                expected.append(ANYTHING)
                continue
            self._lost.discard(state)
            # A request that starts over has nothing behind it, whatever was handed over earlier.
            earlier = self._seen.pop(state, rows[:0]) if computed_before else rows[:0]
            rows = torch.cat([earlier, rows])
            finished = call.seq_lens[place] == call.prompt_lens[place]
            if not finished:
                self._seen[state] = rows
            token_task = self.pooling_type in ("ALL", "STEP")
            if token_task and len(earlier) != computed_before:
                _raise_if(
                    Violation(
                        "progress",
                        f"request {call.names[place]} has {computed_before} tokens computed before this step, but "
                        f"its pooler was handed {len(earlier)} rows of them: {self.pooling_type} pooling needs all",
                    )
                )
            if self.pooling_type is None or not (token_task or finished):
                expected.append(ANYTHING)
            elif not finished:
                expected.append(None)
            else:
                expected.append(pool(self.pooling_type, rows, self._request(call, place)))
        return expected

    def _request(self, call: Call, place: int) -> Request:
        params = call.metadata.pooling_params[place]
        ids = call.metadata.get_prompt_token_ids_cpu()[place].tolist() if self.pooling_type == "STEP" else [0]
        return Request(
            name=call.names[place],
            task=params.task,
            prompt_token_ids=tuple(ids),
            step_tag_id=params.step_tag_id,
            returned_token_ids=tuple(params.returned_token_ids) if params.returned_token_ids else None,
        )


def pooling_type_of(pooler: Any) -> PoolingType | None:
    """What a pooler computes, by its class name."""
    name = type(pooler).__name__.upper().removesuffix("POOL")
    for pooling_type in get_args(PoolingType):
        if name == pooling_type:
            return pooling_type  # type: ignore[no-any-return]
    return None


def _raise_if(violation: Violation | None) -> None:
    if violation is not None:
        raise ContractError(violation)


def _origin(hidden_states: torch.Tensor, row: torch.Tensor) -> str:
    for place, candidate in enumerate(hidden_states):
        if candidate.shape == row.shape and same_numbers(candidate, row):
            return f"row {place} of this step"
    return "no row of this step"
