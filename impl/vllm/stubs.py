"""What takes the place of the rest of vLLM when its pooling code is imported on its own: the whole list.

Not a mock of vLLM: a name that a pooling layer needs in order to work is either the tree's own
(`is_own`, `EXCERPTS`) or one of the few lines below (`STAND_INS`); any other name becomes an `absent`
one, which serves as a type and refuses every other use, so nothing is stood in for unnoticed.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import torch

from impl.config import PoolerConfig, SubjectError
from impl.vllm.model import model_config

_POOLING: Final = re.compile(
    r"vllm\.(?!entrypoints\.|model_executor\.models\.)(.+\.)?(pool(er|ing)?(_\w+)?(\..+)?|tasks|exceptions)"
)

EXCERPTS: Final = frozenset(
    ("BertPooler", "PoolerOutput", "RequestOutputKind", "async_tensor_h2d", "resolve_obj_by_qualname", "safe_hash")
)
"""Definitions that are cut out of modules which otherwise import the whole engine."""

_EXCERPTED: Final = re.compile(
    r"vllm\.(utils|(.+\.)?(sampling_params|outputs|torch_utils|import_utils|hashing|models\.bert))"
)
"""Where releases keep them."""

OUTSIDE: Final = frozenset(("torch", "numpy", "msgspec", "typing_extensions"))
"""Packages besides the standard library that the pooling code gets as they are installed here."""


def is_own(module: str) -> bool:
    """Whether a module is imported as it is: all that is about pooling, and two that import nothing."""
    return _POOLING.fullmatch(module) is not None


def is_excerpted(module: str) -> bool:
    """Whether definitions may be cut out of a module."""
    return _EXCERPTED.fullmatch(module) is not None


def is_kept(path: str) -> bool:
    """Whether a file of a wheel, such as `vllm/tasks.py`, may be needed."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if not path.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        return False
    return is_own(module) or is_excerpted(module)


# The stand-ins.

_configs: list[Any] = []


@contextmanager
def current_config(config: PoolerConfig) -> Iterator[None]:
    """Poolers made in this context see `config` where a `VllmConfig` would be: as far as they read it."""
    scheduler_config = SimpleNamespace(
        enable_chunked_prefill=config.enable_chunked_prefill, async_scheduling=config.async_scheduling
    )
    _configs.append(SimpleNamespace(model_config=model_config(config), scheduler_config=scheduler_config))
    try:
        yield
    finally:
        _configs.pop()


def _get_current_vllm_config() -> Any:
    if not _configs:
        raise SubjectError("the pooling layer asks for the engine's config outside of a constructor")
    return _configs[-1]


class _Logger:
    """A logger that says nothing: reports are the harness' business."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _config(cls: Any = None, **_: Any) -> Any:
    """A dataclass, as pydantic makes of a config class; nothing is validated."""
    if cls is None:
        return _config
    return cls if dataclasses.is_dataclass(cls) else dataclasses.dataclass(cls)


def _no_validator(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """A decorator that registers no validator."""
    return lambda function: function


STAND_INS: Final[dict[str, Any]] = {
    # The engine's config while a pooler is made.
    "get_current_vllm_config": _get_current_vllm_config,
    # Reads a projector from the model's files; the model is the scenario's head.
    "_load_st_projector": lambda model_config: model_config.projector,
    # Host memory is pinned where there is CUDA, as vLLM does on every platform but WSL.
    "is_pin_memory_available": torch.cuda.is_available,
    "PIN_MEMORY": torch.cuda.is_available(),
    "init_logger": lambda name: _Logger(),
    # The config classes are pydantic dataclasses; here they are plain ones.
    "config.utils.config": _config,
    "pydantic.dataclasses.dataclass": _config,
    "pydantic.model_validator": _no_validator,
    "pydantic.field_validator": _no_validator,
}
"""By name, with as much of the module before it as tells it from others: releases move modules about."""


class _Absent(type):
    """The type of names that are not there: good for annotations and `isinstance`, for nothing else."""

    where = ""

    def _refuse(cls, *_: Any, **__: Any) -> Any:
        raise SubjectError(
            f"the pooling layer uses {cls.where}, which is not part of it and has no stand-in; "
            "run it as --subject vllm in an environment with the whole of vLLM"
        )

    __call__ = __bool__ = __iter__ = __len__ = _refuse

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls._refuse()


def absent(module: str, name: str) -> type:
    """A name of a module that is not imported."""
    return _Absent(name, (), {"where": f"{module}.{name}"})
