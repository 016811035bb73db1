"""Where bad poolers are entered: each with its mistake, the contract that should catch it, and a subject."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import torch

from impl.builtin import BUILTIN
from impl.config import PARTS, Level, Part, PoolerConfig, PoolFn, Subject, Verify
from impl.hostsplit import HostSplit
from impl.late_interaction import MaxSim
from impl.methods import Methods
from impl.pooler import Pooler
from oracle import metadata
from oracle.contracts import Call
from oracle.metadata import PoolingMetadata, PoolingParams, PoolingStates, RowsConvention

METHODS = TypeVar("METHODS", bound=type[Methods])
LAYER = TypeVar("LAYER", bound=type[Pooler])
SCORING = TypeVar("SCORING", bound=type[MaxSim])
METADATA = TypeVar("METADATA", bound=type[PoolingMetadata])


@dataclass(frozen=True)
class BadPooler:
    """A pooler with one realistic mistake.

    Attributes:
        name: what tests and reports call it.
        how: one sentence on how someone would come to write it.
        contracts: the contract that should catch it; several where chance decides which shows first.
        subject: the pooler, as the fuzzer takes it.

    """

    name: str
    how: str
    contracts: tuple[str, ...]
    subject: Subject


@dataclass
class Handed:
    """What a caller is about to hand to a pooler: rows, metadata, and what was computed before."""

    hidden_states: torch.Tensor
    metadata: PoolingMetadata
    names: list[str]
    computed_before: list[int]

    def call(self) -> Call:
        """What the contracts are checked on."""
        return Call(self.hidden_states, self.metadata, self.names, self.computed_before)


@dataclass(frozen=True)
class BadCaller:
    """A caller with one realistic mistake: `spoil` makes it in what was right until then."""

    name: str
    how: str
    contract: str
    spoil: Callable[[Handed], None] = field(repr=False)


ZOO: Final[list[BadPooler]] = []
CALLERS: Final[list[BadCaller]] = []


def subject_of(
    methods: type[Methods], serves: tuple[str, ...], rows: RowsConvention = "group", api: Any = metadata
) -> Subject:
    """A subject that is asked for one pooling method at a time."""

    def build(config: PoolerConfig, _: Level) -> PoolFn:
        method: PoolFn = methods(config).method(config.pooling_type)
        return method

    return Subject(_name(methods), build, frozenset(serves), (rows,), api=api)


def layer_of(
    layer: Callable[[PoolerConfig], PoolFn], name: str, serves: tuple[str, ...], parts: tuple[Part, ...] = ()
) -> Subject:
    """A subject that is asked for whole poolers, of some parts besides heads and dispatch."""
    return Subject(
        name, lambda config, _: layer(config), frozenset(serves), levels=("pooler",), lacks=PARTS - set(parts)
    )


def bad(
    *contracts: str, serves: tuple[str, ...] = ("ALL",), rows: RowsConvention = "group"
) -> Callable[[METHODS], METHODS]:
    """Enter a set of methods that breaks one of the contracts; its docstring says how it came about."""

    def enter(methods: METHODS) -> METHODS:
        ZOO.append(BadPooler(_name(methods), _how(methods), contracts, subject_of(methods, serves, rows)))
        return methods

    return enter


def bad_layer(
    *contracts: str, serves: tuple[str, ...] = ("ALL", "LAST"), parts: tuple[Part, ...] = ()
) -> Callable[[LAYER], LAYER]:
    """Enter a whole pooler, with heads and dispatch, that breaks one of the contracts."""

    def enter(layer: LAYER) -> LAYER:
        made: Any = layer
        ZOO.append(BadPooler(_name(layer), _how(layer), contracts, layer_of(made, _name(layer), serves, parts)))
        return layer

    return enter


def bad_scoring(*contracts: str) -> Callable[[SCORING], SCORING]:
    """Enter a late interaction, behind right poolers, that breaks one of the contracts."""

    def enter(scoring: SCORING) -> SCORING:
        name, right = _name(scoring), BUILTIN["hostsplit"]
        subject = replace(right, name=name, spec=name, supports=frozenset(("ALL",)), levels=("pooler",))
        lacks = PARTS - {"late-interaction"}
        ZOO.append(BadPooler(name, _how(scoring), contracts, replace(subject, lacks=lacks, late_interaction=scoring)))
        return scoring

    return enter


def bad_verification(*contracts: str) -> Callable[[Verify], Verify]:
    """Enter a verification of params, in front of right poolers, that breaks one of the contracts."""

    def enter(verify: Any) -> Any:
        name = verify.__name__.replace("_", "-")
        right = BUILTIN["hostsplit"]
        subject = replace(right, name=name, spec=name, supports=frozenset(("ALL", "LAST")), verify=verify)
        ZOO.append(BadPooler(name, _how(verify), contracts, replace(subject, levels=("pooler",))))
        return verify

    return enter


def bad_metadata(*contracts: str) -> Callable[[METADATA], METADATA]:
    """Enter a metadata class that breaks one of the contracts under a right pooler."""

    def enter(made: METADATA) -> METADATA:
        api = SimpleNamespace(PoolingParams=PoolingParams, PoolingStates=PoolingStates, PoolingMetadata=made)
        subject = replace(subject_of(HostSplit, ("ALL", "LAST"), api=api), name=_name(made))
        ZOO.append(BadPooler(subject.name, _how(made), contracts, subject))
        return made

    return enter


def bad_caller(contract: str) -> Callable[[Callable[[Handed], None]], Callable[[Handed], None]]:
    """Enter a caller that breaks a contract."""

    def enter(spoil: Callable[[Handed], None]) -> Callable[[Handed], None]:
        CALLERS.append(BadCaller(spoil.__name__.replace("_", "-"), _how(spoil), contract, spoil))
        return spoil

    return enter


def _how(made: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(made) or "").split())


def _name(made: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", made.__name__).lower()
