"""Makes the simulated device known to PyTorch: its name, `torch.sim`, and tensors made on it.

It takes the place that PyTorch keeps for one private backend. Nothing else of PyTorch is replaced.
"""

from functools import partial
from typing import Any, Final

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from oracle.device import runtime
from oracle.device.ops import FACTORIES, NAME
from oracle.device.stream import STREAM
from oracle.device.tensor import SimTensor, copy, count_kernel

DEVICE_INDEX: Final = 0
_UNNAMED: Final = "privateuseone"
_libraries: list[torch.library.Library] = []
"""Kernels live as long as the library they came with."""


class NoDeviceError(Exception):
    """A device that is not to be had here."""


def enable() -> torch.device:
    """The simulated device; made known on the first call.

    Raises:
        NoDeviceError: another package has taken PyTorch's place for a private backend.
    """
    if not _libraries:
        taken = torch._C._get_privateuse1_backend_name()
        if taken != _UNNAMED:
            raise NoDeviceError(
                f"PyTorch has room for one private backend, and {taken!r} has taken it; run --device sim without it"
            )
        rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, runtime)
        _libraries.append(_library())
    return torch.device(NAME, DEVICE_INDEX)


def _library() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for name in FACTORIES:
        packet, _, overload = name.partition(".")
        factory = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, partial(_make, factory), "PrivateUse1")
    # `torch.tensor` copies to the device below the level at which tensor subclasses are heard.
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    return library


def _make(factory: Any, *args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> torch.Tensor:
    """Make a tensor on the device out of nothing."""
    made = SimTensor.over(STREAM.launch(factory, *args, device="cpu", **kwargs))
    if not factory.overloadpacket.__name__.startswith("empty"):
        count_kernel(made)
    return made


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy(target, source, non_blocking)
