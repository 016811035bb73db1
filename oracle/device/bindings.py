"""What PyTorch's Python functions can't do for a backend without C++: pin memory, and a few that ask for a device.

A mode over functions rather than operators: it is cheaper by far, and these functions fail before any
operator is called.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from oracle.device.ops import NAME
from oracle.device.pinned import is_pinned, mark
from oracle.device.tensor import SimTensor


def bindings(device: torch.device) -> AbstractContextManager[object]:
    """While it is on, code for the device finds PyTorch whole; for other devices there is nothing to do."""
    return Bindings() if device.type == NAME else nullcontext()


class Bindings(TorchFunctionMode):
    """Answers for the functions that would fail, and passes on the rest."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, or what stands in for it."""
        stand_in = _STAND_INS.get(func)
        if stand_in is not None:
            return stand_in(func, *args, **(kwargs or {}))
        if not kwargs:
            return func(*args)
        return _pinning(func, *args, **kwargs) if kwargs.get("pin_memory") else func(*args, **kwargs)


def _pinning(func: Any, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
    """Make a host tensor whose memory is pinned if that is asked for."""
    made: torch.Tensor = func(*args, **kwargs)
    return mark(made) if pin_memory else made


def _pin_memory(func: Any, tensor: torch.Tensor, *args: Any) -> Any:
    if not tensor.is_cpu:
        return func(tensor, *args)
    return tensor if is_pinned(tensor) else mark(tensor.clone())


def _is_pinned(func: Any, tensor: torch.Tensor, *args: Any) -> bool:
    return is_pinned(tensor)


def _nonzero(func: Any, tensor: torch.Tensor, *, as_tuple: bool = False) -> Any:
    return tensor.nonzero(as_tuple=as_tuple) if isinstance(tensor, SimTensor) else func(tensor, as_tuple=as_tuple)


def _tensor(func: Any, values: Any, **kwargs: Any) -> torch.Tensor:
    """Numbers of the device among the values are read one by one."""
    if isinstance(values, (list, tuple)):
        values = [value.item() if isinstance(value, SimTensor) and not value.dim() else value for value in values]
    return _pinning(func, values, **kwargs)


_STAND_INS: Final[dict[Any, Callable[..., Any]]] = {
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: _is_pinned,
    torch.nonzero: _nonzero,
    torch.tensor: _tensor,
}
