"""Pinned host memory, where there may be no accelerator to pin it for.

Only pinned memory is copied without a stop on the way: from it an upload may still be under way when the
call returns. Tensors are marked by their storage, so that views of pinned memory are pinned too.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from device.ops import NAME

_aten = torch.ops.aten
_pinned: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Count a host tensor's memory as pinned from now on."""
    storage = tensor.untyped_storage()
    _pinned[storage._cdata] = storage
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a host tensor's memory counts as pinned."""
    return tensor.untyped_storage()._cdata in _pinned


def pinning(device: torch.device) -> AbstractContextManager[object]:
    """While it is on, code for the device can pin memory: on the simulated one by `PinnedMemory`."""
    return PinnedMemory() if device.type == NAME else nullcontext()  # type: ignore[no-untyped-call]


class PinnedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes `pin_memory()`, `is_pinned()` and `pin_memory=True` work without an accelerator."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer what is about pinning, pass on the rest."""
        kwargs = kwargs or {}
        if func in (_aten.pin_memory.default, _aten._pin_memory.default):
            return args[0] if is_pinned(args[0]) else mark(args[0].clone())
        if func is _aten.is_pinned.default:
            return is_pinned(args[0])
        if kwargs.get("pin_memory"):
            return mark(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
