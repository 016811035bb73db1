"""What the simulated device knows of PyTorch's operators: which ones launch a kernel, which make the host wait.

Tables only; `device.tensor` acts on them. An operator that is in no table and is not made of others is
an error that names it, for a silent fallback to the host would hide the very waits that are looked for.

Source: PyTorch's `aten/src/ATen/native/native_functions.yaml` and the CUDA kernels of the operators named.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

NAME: Final = "sim"
"""The device's type, as in `sim:0`."""

_KERNEL_NAMES: Final = """
abs add addcdiv addcmul addmm all amax amin any argmax argmin argsort baddbmm bitwise_and bitwise_not bitwise_or
bitwise_xor bmm cat ceil clamp clamp_max clamp_min clone constant_pad_nd copysign cos cummax cumprod cumsum div
embedding eq erf exp exp2 expm1 fill flip floor floor_divide fmod frac full_like gather ge gelu gt hypot
index_add index_copy index_fill index_reduce index_select isfinite isinf isnan layer_norm le lerp linalg_vector_norm
linear log log10 log1p log2 log_softmax logical_and logical_not logical_or logical_xor logsumexp lt masked_fill
matmul max maximum mean min minimum mm mul mv native_layer_norm ne neg new_full new_ones new_zeros norm
ones_like pow prod reciprocal relu remainder repeat roll round rsqrt rsub scatter scatter_add scatter_reduce
searchsorted segment_reduce select_scatter sgn sigmoid sign silu sin sort sqrt square stack std sub sum tan tanh topk
slice_scatter tril triu true_divide trunc var where.self xlogy zero zeros_like _log_softmax _softmax _to_copy
"""
_KERNELS: Final = frozenset(_KERNEL_NAMES.split())
"""By name, in place or not, and whatever the overload where none is given."""

_NO_KERNELS: Final = frozenset(("_unsafe_view", "empty_like", "new_empty", "new_empty_strided"))
"""Allocations, and a view that is not declared as one."""

_READS: Final = {
    "_local_scalar_dense": "item",
    "_unique2": "unique",
    "allclose": "torch.allclose",
    "bincount": "bincount",
    "equal": "torch.equal",
    "masked_select": "masked_select",
    "nonzero": "nonzero",
    "repeat_interleave": "repeat_interleave without output_size",
    "unique_consecutive": "unique_consecutive",
    "unique_dim": "unique",
}
"""Operators whose result, or its shape, the host must know before it can go on."""

_TAKE_SCALARS: Final = frozenset(("fill", "index_fill", "masked_fill"))
"""Besides the pointwise ones: operators to which a 0-dimensional host tensor is passed by value."""

FACTORIES: Final = (
    "arange", "arange.start", "arange.start_step", "empty.memory_format", "empty_strided", "eye", "eye.m", "full",
    "linspace", "ones", "scalar_tensor", "zeros",
)  # fmt: skip
"""What makes tensors on the device out of nothing."""


class UnknownOperatorError(NotImplementedError):
    """An operator of which it can't be said what it costs."""

    def __init__(self, operator: object) -> None:
        super().__init__(
            f"the simulated device doesn't know {operator}; what it launches and whether the host waits for it "
            "belongs into `device/ops.py`"
        )


def is_our_limit(error: Exception) -> bool:
    """Whether an error says that the simulated device falls short, not that the code on it is wrong."""
    told = (f"from the '{NAME}' backend", f"support for {NAME} devices")
    return isinstance(error, UnknownOperatorError) or any(part in str(error) for part in told)


@dataclass(frozen=True)
class Plan:
    """What an operator does on a device."""

    launches: bool
    """It runs a kernel; a view or an allocation does not."""
    waits_for: str
    """What the wait is called; empty if the host goes on at once."""
    takes_scalars: bool
    writes: tuple[int | str, ...]
    """Places and names of the arguments that it writes."""


@cache
def plan(operator: Any) -> Plan | None:
    """What an operator does on a device; None for one that is not in the tables."""
    name = base_name(operator)
    composite = operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    launches = name in _KERNELS or f"{name}.{operator._overloadname}" in _KERNELS
    waits_for = "" if composite else _READS.get(name, "")
    is_view = operator.is_view and not composite
    if not (launches or waits_for or is_view or name in _NO_KERNELS):
        return None
    return Plan(
        launches=launches or bool(waits_for),
        waits_for=waits_for,
        takes_scalars=torch.Tag.pointwise in operator.tags or name in _TAKE_SCALARS,
        writes=tuple(
            argument.name if argument.kwarg_only else place
            for place, argument in enumerate(operator._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
    )


def base_name(operator: Any) -> str:
    """The operator's name without overload and without the underscore of the in-place form."""
    name: str = operator.overloadpacket.__name__
    return name.removesuffix("_")
