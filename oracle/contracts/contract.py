"""What a contract is, and the list of them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from oracle.contracts.seen import Call, Outcome

Phase = Literal["before", "after", "between"]
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Violation:
    """One contract broken once."""

    contract: str
    message: str


class ContractError(AssertionError):
    """A violated contract, raised by `oracle.guard`."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.contract}: {violation.message}")
        self.violation = violation


@dataclass(frozen=True)
class Contract(Generic[Subject]):
    """A rule with its check."""

    name: str
    phase: Phase
    rule: str
    why: str
    without: str
    check: Callable[[Subject], str | None]


BEFORE: Final[list[Contract[Call]]] = []
AFTER: Final[list[Contract[Outcome]]] = []
OTHER: Final[list[Contract[Any]]] = []
"""Contracts whose check needs more than one call; the runner or a relation holds it."""


def before(check: Callable[[Call], str | None]) -> Callable[[Call], str | None]:
    """Register the caller's duty; checked in the order of registration, until one is broken."""
    BEFORE.append(_contract(check, "before"))
    return check


def after(check: Callable[[Outcome], str | None]) -> Callable[[Outcome], str | None]:
    """Register the pooler's duty; checked in the order of registration, until one is broken."""
    AFTER.append(_contract(check, "after"))
    return check


def declare(phase: Phase) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Register a contract whose check is called by name."""

    def register(check: Callable[..., str | None]) -> Callable[..., str | None]:
        OTHER.append(_contract(check, phase))
        return check

    return register


def _contract(check: Callable[..., str | None], phase: Phase) -> Contract[Any]:
    rule, _, rest = inspect.cleandoc(check.__doc__ or "").partition("\n")
    why, _, without = rest.partition("Without it: ")
    return Contract(
        name=_name(check),
        phase=phase,
        rule=rule,
        why=" ".join(why.replace("Why: ", "").split()),
        without=" ".join(without.split()),
        check=check,
    )


def _name(check: Callable[..., Any]) -> str:
    return check.__name__.replace("_", "-")


def all_contracts() -> list[Contract[Any]]:
    """Every contract, the caller's duties first."""
    rank = ("before", "after", "between")
    return sorted([*BEFORE, *AFTER, *OTHER], key=lambda contract: rank.index(contract.phase))


def named(name: str) -> Contract[Any]:
    """The contract of that name.

    Raises:
        KeyError: there is none.
    """
    return {contract.name: contract for contract in all_contracts()}[name]


def first_broken(contracts: Sequence[Contract[Subject]], subject: Subject) -> Violation | None:
    """The first of the contracts that does not hold; later ones may rely on it."""
    for contract in contracts:
        message = contract.check(subject)
        if message is not None:
            return Violation(contract.name, message)
    return None
