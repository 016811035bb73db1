"""Pinned host memory, where there may be no accelerator to pin it for.

Only pinned memory is copied without a stop on the way: from it an upload may still be under way when the
call returns. Tensors are marked by their storage, so that views of pinned memory are pinned too.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.overrides import TorchFunctionMode

from device.ops import NAME

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
    return PinnedMemory() if device.type == NAME else nullcontext()


class PinnedMemory(TorchFunctionMode):
    """Makes `pin_memory()`, `is_pinned()` and `pin_memory=True` work without an accelerator.

    A mode over functions rather than operators: it is cheaper by far, and `torch.tensor` refuses to pin
    before any operator is called.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer what is about pinning, pass on the rest."""
        if func is torch.Tensor.pin_memory and args[0].is_cpu:
            return args[0] if is_pinned(args[0]) else mark(args[0].clone())
        if func is torch.Tensor.is_pinned:
            return is_pinned(args[0])
        if not kwargs:
            return func(*args)
        if kwargs.get("pin_memory"):
            return mark(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
