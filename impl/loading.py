"""From a SPEC on the command line to a subject.

A SPEC is a built-in name, `path/to/file.py:factory`, `package.module:factory`, `vllm==X.Y.Z`, `vllm@DIR`,
`vllm`, `vllm-v1` or `vllm-v2`.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from impl.builtin import BUILTIN
from impl.config import PARTS, Level, PoolerConfig, PoolFn, Subject, SubjectError, SyncBudget
from impl.vllm import names_vllm
from impl.vllm import subject as vllm_subject
from oracle.metadata import RowsConvention

POOLING_TYPES = frozenset(("ALL", "STEP", "CLS", "LAST", "MEAN"))


def load(spec: str, sync_budget: int | None = None) -> Subject:
    """The subject that a SPEC names; a `sync_budget` a call takes the place of what it declares.

    Raises:
        SubjectError: there is none, or it can't be imported, or it is of the wrong shape.
    """
    subject = _load(spec)
    return subject if sync_budget is None else subject.held_to(SyncBudget(sync_budget))


def _load(spec: str) -> Subject:
    if spec in BUILTIN:
        return BUILTIN[spec]
    if names_vllm(spec):
        subject: Subject = _guarded(partial(vllm_subject, spec), spec)
        return subject
    where, colon, attribute = spec.rpartition(":")
    if not colon or not where or not attribute:
        raise SubjectError(
            f"there is no subject {spec!r}; give one of {', '.join(BUILTIN)}, vllm==X.Y.Z, vllm@DIR, vllm, "
            "vllm-v1, vllm-v2, path/to/file.py:factory or package.module:factory"
        )
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        offered = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise SubjectError(
            f"{where} has no factory {attribute!r}; what it has to call is: {', '.join(offered) or 'nothing'}"
        )
    return from_factory(factory, spec)


def from_factory(factory: Callable[[PoolerConfig], PoolFn], name: str) -> Subject:
    """A subject from a factory `factory(config) -> pooler` with optional attributes.

    Attributes:
        supports: the pooling types it serves, default `{"ALL"}`.
        rows: the calling convention it takes, default `"group"`; a tuple for both.
        level: `"method"`, the default, or `"pooler"` for a whole layer with heads and dispatch.
        sync_budget: how often a call may wait for the device, default 0; a pair `(a call, a request)` if
            that grows with the batch; a dict from pooling types to either.
        verify: verifies params, `(params, model_config)`, if that is among its parts.
        late_interaction: makes an `impl.config.LateInteraction`, if that is among its parts.
        parts: what a whole layer has besides heads and dispatch, of `impl.config.Part`; default none.

    Raises:
        SubjectError: an attribute has an impossible value.
    """
    supports = getattr(factory, "supports", {"ALL"})
    rows = _several(getattr(factory, "rows", "group"), get_args(RowsConvention), f"{name}'s `rows`")
    levels = _several(getattr(factory, "level", "method"), get_args(Level), f"{name}'s `level`")
    supports = _several(supports, sorted(POOLING_TYPES), f"{name}'s `supports`")
    parts = set(_several(getattr(factory, "parts", ()), sorted(PARTS), f"{name}'s `parts`", least=0))
    verify, late_interaction = getattr(factory, "verify", None), getattr(factory, "late_interaction", None)
    for part, attribute, value in (
        ("params-verification", "verify", verify), ("late-interaction", "late_interaction", late_interaction)
    ):  # fmt: skip
        if part in parts and not callable(value):
            raise SubjectError(f"{name}'s `parts` hold {part}, but it has no `{attribute}` to call")
    return Subject(
        name=name,
        build=lambda config, _: factory(config),
        supports=frozenset(supports),
        rows=rows,
        levels=levels,
        lacks=PARTS - parts,
        verify=verify,
        late_interaction=late_interaction,
        sync_budgets=_budgets(getattr(factory, "sync_budget", 0), supports, f"{name}'s `sync_budget`"),
    )


def _budgets(declared: Any, supports: Iterable[str], what: str) -> dict[str, SyncBudget]:
    by_type = declared if isinstance(declared, dict) else dict.fromkeys(supports, declared)
    budgets = {}
    for pooling_type, value in by_type.items():
        parts = (value,) if isinstance(value, int) else value
        if pooling_type not in POOLING_TYPES or not _are_counts(parts):
            raise SubjectError(
                f"{what} is {declared!r}, but should be a number of waits a call, a pair of numbers a call and a "
                f"request, or a dict from {', '.join(sorted(POOLING_TYPES))} to either"
            )
        budgets[pooling_type] = SyncBudget(*parts)
    return budgets


def _are_counts(parts: Any) -> bool:
    return (
        isinstance(parts, (tuple, list))
        and 1 <= len(parts) <= 2
        and all(isinstance(part, int) and part >= 0 for part in parts)
    )


def _several(value: Any, allowed: Any, what: str, least: int = 1) -> tuple[Any, ...]:
    values = (value,) if isinstance(value, str) else tuple(value)
    wrong = [item for item in values if item not in allowed]
    if wrong or len(values) < least:
        raise SubjectError(f"{what} is {value!r}, but may hold only {', '.join(allowed)}{', and at least one' * least}")
    return values


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SubjectError(f"there is no file {path}")
    name = f"poolproof_subject_{abs(hash(path.resolve()))}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise SubjectError(f"{path} is not a Python file")
    loader = found.loader
    module = importlib.util.module_from_spec(found)
    # Dataclasses look their module up while it is being imported.
    sys.modules[name] = module
    _guarded(partial(loader.exec_module, module), str(path))
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        module: ModuleType = _guarded(partial(importlib.import_module, name), name)
    finally:
        sys.path.pop(0)
    return module


def _guarded(do: Callable[[], Any], what: str) -> Any:
    try:
        return do()
    except SubjectError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise SubjectError(
            f"{what} can't be imported: {type(error).__name__}: {error} (at {frame.filename}:{frame.lineno})"
        ) from error
