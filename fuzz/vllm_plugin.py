"""The contracts inside any vLLM process, by vLLM's own way of loading plugins; off unless a variable asks for it.

`POOLPROOF_GUARD=raise` ends the step that breaks a contract, `POOLPROOF_GUARD=report` logs the first break of
each contract by each pooler and goes on. vLLM calls `register` in each of its processes; without the variable it
imports nothing and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oracle.contracts import ContractError

VARIABLE: Final = "POOLPROOF_GUARD"


def register() -> None:
    """Guard every pooler that is made from now on, if the environment asks for it.

    Raises:
        ValueError: it asks for something else than `raise` or `report`.
        RuntimeError: this vLLM hands its poolers something that the guard can't judge.
    """
    how = os.environ.get(VARIABLE, "")
    if not how:
        return
    if how not in ("raise", "report"):
        raise ValueError(f"{VARIABLE} is {how!r}; say raise or report, or leave it out")
    _install(reports=how == "report")


def _install(reports: bool) -> None:
    from vllm.model_executor.layers.pooler.seqwise import SequencePooler
    from vllm.model_executor.layers.pooler.special import DispatchPooler
    from vllm.model_executor.layers.pooler.tokwise import TokenPooler

    # Until 0.20 each pooler was handed the rows of the whole step, and spans that begin anywhere in it.
    if "num_scheduled_tokens_cpu" not in DispatchPooler.forward.__code__.co_names:
        raise RuntimeError(f"{VARIABLE} serves vLLM from 0.21 on, where a pooler is handed its own group's rows")
    for kind in (SequencePooler, TokenPooler):
        # vLLM may load its plugins more than once.
        if not hasattr(kind.__init__, "guards"):
            kind.__init__ = _guarding(kind.__init__, reports)


def _guarding(init: Callable[..., None], reports: bool) -> Callable[..., None]:
    @wraps(init)
    def guarding(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _guard(self.pooling, reports)

    guarding.guards = True  # type: ignore[attr-defined]
    return guarding


def _guard(pooling: Any, reports: bool) -> None:
    """Put the contracts before and after a method's `forward`; it stays what it is, for vLLM asks for its class."""
    from torch.nn import Module

    from oracle.guard import Guarded, pooling_type_of, raise_it

    # Some models pool with a plain function, which has no place for a guard.
    if not isinstance(pooling, Module) or "forward" in vars(pooling):
        return
    # Rows that are cut to a width of their own are no longer those of the hidden states.
    cuts = getattr(pooling, "output_sizes_fn", None) is not None
    pooling_type = None if cuts else pooling_type_of(pooling)
    on_broken = _Reporter(type(pooling).__name__) if reports else raise_it
    guarded = Guarded(_Unguarded(pooling), pooling_type, on_broken)
    # In the instance's own namespace: a module in its place would be taken for a part of the model.
    pooling.forward = lambda hidden_states, pooling_metadata: guarded(hidden_states, pooling_metadata)


class _Unguarded:
    """A method as it was: its own `forward`, and every other attribute."""

    def __init__(self, pooling: Any) -> None:
        self._pooling = pooling
        self._forward = pooling.forward

    def __call__(self, hidden_states: Any, pooling_metadata: Any) -> Any:
        return self._forward(hidden_states, pooling_metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooling, name)


class _Reporter:
    """Logs the first break of each contract by one pooler, where vLLM logs."""

    def __init__(self, pooler: str) -> None:
        self._pooler = pooler
        self._told: set[str] = set()

    def __call__(self, broken: ContractError) -> None:
        import logging

        if broken.violation.contract not in self._told:
            self._told.add(broken.violation.contract)
            logging.getLogger("vllm.poolproof").error("%s breaks a contract: %s", self._pooler, broken)
