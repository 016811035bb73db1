"""Tensors of the simulated device: host data that behaves as if it lay elsewhere.

Each wraps a host tensor, so views share memory as they would on a device. What needs the host to wait is
noted with its place; mixing devices is refused as CUDA refuses it, with CUDA's exceptions. Not here: how
an operator is classified (`device.ops`) and in which order work is done (`device.stream`).

PyTorch's Python bindings switch to a tensor's device in a few methods, through a guard that a backend
without C++ can't have. Those methods are overridden here; all else arrives in `__torch_dispatch__`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from oracle.device import record
from oracle.device.ops import NAME, Plan, UnknownOperatorError, base_name, plan
from oracle.device.pinned import is_pinned
from oracle.device.record import note
from oracle.device.stream import STREAM

_aten = torch.ops.aten
_DEVICE: Final = torch.device("privateuseone", 0)
"""The device under the name that PyTorch keeps for it; once it is made known, it is called `NAME`."""
_COUNT_BYTES: Final = 8
"""What a device sends to the host so that it knows how long a result is."""


class SimTensor(torch.Tensor):
    """A tensor on the simulated device; `backing` is the host tensor that holds its data."""

    backing: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def over(backing: torch.Tensor) -> "SimTensor":
        """The device tensor whose data is `backing`."""
        tensor: SimTensor = torch.Tensor._make_wrapper_subclass(
            SimTensor,
            backing.size(),
            strides=backing.stride(),
            storage_offset=backing.storage_offset(),
            dtype=backing.dtype,
            device=_DEVICE,
        )
        tensor.backing = backing
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do what an operator does on a device."""
        special = _SPECIAL.get(func)
        return special(*args, **(kwargs or {})) if special else execute(func, args, kwargs or {})

    def _read(self, operation: str, size_bytes: int | None = None) -> torch.Tensor:
        note("read", operation, self.backing.nbytes if size_bytes is None else size_bytes, waits=True)
        STREAM.land()
        return self.backing

    def item(self) -> Any:
        """A single number, for which the host waits."""
        return self._read("item").item()

    def tolist(self) -> Any:
        """The numbers, for which the host waits."""
        return self._read("tolist").tolist()

    def numpy(self, **_: Any) -> Any:
        """Refused, for the data is not on the host."""
        raise TypeError(
            f"can't convert a tensor on {self.device} to numpy; copy it to the host with Tensor.cpu() first"
        )

    def __bool__(self) -> bool:
        return bool(self._read("bool"))

    def __int__(self) -> int:
        return int(self._read("int"))

    def __index__(self) -> int:
        return operator.index(self._read("index"))

    def __float__(self) -> float:
        return float(self._read("float"))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self._read('print')!r} on {self.device}"

    def __format__(self, spec: str) -> str:
        return format(self._read("print"), spec)

    def __invert__(self) -> torch.Tensor:
        return torch.bitwise_not(self)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy from the host or from the device."""
        return copy(self, source, non_blocking)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """Where it is not zero, for which the host must know how often."""
        return (_aten.nonzero_numpy if as_tuple else _aten.nonzero).default(self)

    def new_tensor(  # type: ignore[override]
        self, values: Any, *, dtype: torch.dtype | None = None, device: Any = None
    ) -> torch.Tensor:
        """Values from the host, on this device unless another is named."""
        return torch.tensor(values, dtype=dtype or self.dtype, device=device or self.device)

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        """Itself, or a copy whose elements lie side by side."""
        return self if self.is_contiguous(memory_format=memory_format) else self.clone(memory_format=memory_format)

    def __getitem__(self, index: Any) -> Any:
        parts = _key(index)
        if not any(isinstance(part, torch.Tensor) for part in parts):
            return SimTensor.over(self.backing[parts])
        return _launched(STREAM.launch(operator.getitem, self.backing, parts), (self,))

    def __setitem__(self, index: Any, value: Any) -> None:
        fills = not isinstance(value, torch.Tensor) or value.numel() == 1
        parts = _key(index, fills)
        value = _stored(value, by_index=any(isinstance(part, torch.Tensor) for part in parts))
        STREAM.launch(operator.setitem, self.backing, parts, value, writes=(self.backing,))
        count_kernel(self)


def execute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that has device tensors among its arguments.

    Raises:
        UnknownOperatorError: it can't be said what the operator costs.
        RuntimeError: tensors of several devices that CUDA would not take together either.
    """
    known = plan(func)
    if known is None:
        result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise UnknownOperatorError(func)
        return result
    if known.waits_for and kwargs.get("output_size") is None:
        note("read", known.waits_for, _COUNT_BYTES, waits=True)
        STREAM.land()
    on_device: list[SimTensor] = []
    host_args = [_host(arg, func, known, on_device) for arg in args]
    host_kwargs = {name: _host(arg, func, known, on_device) for name, arg in kwargs.items()}
    stays = True
    if "device" in kwargs:
        stays = kwargs["device"] is None or kwargs["device"].type == NAME
        host_kwargs["device"] = None if stays else kwargs["device"]
    if known.writes:
        written = [args[at] if isinstance(at, int) else kwargs[at] for at in known.writes]
        STREAM.launch(func, *host_args, writes=[_own(tensor, func).backing for tensor in written], **host_kwargs)
        count_kernel(*on_device)
        if any(tensor.shape != tensor.backing.shape for tensor in written):
            raise UnknownOperatorError(f"{func} with an output that it must resize")
        return written[0] if len(written) == 1 else tuple(written)
    result = STREAM.launch(func, *host_args, **host_kwargs) if known.launches else func(*host_args, **host_kwargs)
    if not stays:
        return result
    return _launched(result, on_device) if known.launches else _wrapped(result)


def _host(value: Any, func: Any, known: Plan, on_device: list[SimTensor]) -> Any:
    """An argument as the host's kernel takes it; device tensors are gathered in `on_device`."""
    if isinstance(value, SimTensor):
        on_device.append(value)
        return value.backing
    if isinstance(value, torch.Tensor):
        if value.dim() or not known.takes_scalars:
            raise _mixed(func, value)
        _count_scalar()
        return value
    if isinstance(value, (list, tuple)):
        return [_host(item, func, known, on_device) for item in value]
    return value


def _own(tensor: torch.Tensor, func: Any) -> SimTensor:
    """A tensor that must lie on the device."""
    if not isinstance(tensor, SimTensor):
        raise _mixed(func, tensor)
    return tensor


def _mixed(func: Any, stranger: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{NAME}:0 and {stranger.device}! (a tensor of shape {tuple(stranger.shape)} passed to {base_name(func)})"
    )


def _count_scalar() -> None:
    audited = record.active()
    if audited is not None:
        audited.host_scalars += 1


def _wrapped(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return SimTensor.over(result)
    if isinstance(result, (list, tuple)):
        return type(result)(map(_wrapped, result))
    return result


def _launched(result: Any, inputs: Sequence[SimTensor]) -> Any:
    """Wrap what a kernel made, and count the kernel."""
    made = _wrapped(result)
    outputs = made if isinstance(made, (list, tuple)) else (made,)
    count_kernel(*inputs, *(output for output in outputs if isinstance(output, SimTensor)))
    return made


def count_kernel(*touched: SimTensor) -> None:
    """Add a kernel to the record that is being written, with the tensors that it reads and writes."""
    audited = record.active()
    if audited is not None:
        size_bytes = sum(tensor.backing.nbytes for tensor in touched)
        # Nothing is launched for nothing.
        audited.kernels += bool(size_bytes)
        audited.device_bytes += size_bytes


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between host and device, or on the device."""
    if isinstance(target, SimTensor) and isinstance(source, SimTensor):
        STREAM.launch(torch.Tensor.copy_, target.backing, source.backing, writes=(target.backing,))
        count_kernel(target, source)
    elif isinstance(target, SimTensor):
        note("upload", "copy to the device", source.nbytes, waits=not non_blocking)
        if non_blocking:
            STREAM.upload(target.backing, source)
        else:
            STREAM.land()
            target.backing.copy_(source)
    elif isinstance(source, SimTensor):
        waits = not (non_blocking and is_pinned(target))
        note("read", "copy to the host", source.backing.nbytes, waits)
        if waits:
            STREAM.land()
            target.copy_(source.backing)
        else:
            STREAM.download(target, source.backing)
    return target


def _to_copy(
    source: SimTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    func = _aten._to_copy.default
    if device is None or device.type == NAME:
        return execute(func, (source,), {"dtype": dtype, "memory_format": memory_format})  # type: ignore[no-any-return]
    note("read", "copy to the host", source.backing.nbytes, waits=not non_blocking)
    if not non_blocking:
        STREAM.land()
        return func(source.backing, dtype=dtype, device=device, memory_format=memory_format)  # type: ignore[no-any-return]
    target = STREAM.landing_ground(source.backing, dtype=dtype)
    STREAM.download(target, source.backing)
    return target


def _key(index: Any, fills: bool = False) -> tuple[Any, ...]:
    """What stands between the brackets, as the host's tensor takes it."""
    parts = index if isinstance(index, tuple) else (index,)
    # A single number selects, for which the host must know it; slices ask for theirs by themselves.
    return tuple(
        operator.index(part)
        if isinstance(part, torch.Tensor) and not part.dim() and part.dtype is not torch.bool
        else _index_part(part, fills)
        for part in parts
    )


def _index_part(part: Any, fills: bool = False) -> Any:
    """Part of an index as the host's tensor takes it, with what it costs a device noted.

    A single value is stored through a mask by one kernel (`fills`); any other use of a mask must count first.
    """
    if isinstance(part, SimTensor):
        if part.dtype in (torch.bool, torch.uint8):
            return part.backing if fills else part._read("boolean mask", _COUNT_BYTES)
        return part.backing
    if isinstance(part, (torch.Tensor, Sequence)) or hasattr(part, "__array__"):
        on_host = part if isinstance(part, torch.Tensor) else _as_index(part)
        note("upload", "index from the host", on_host.nbytes, waits=True)
        STREAM.land()
        return on_host
    return part


def _as_index(part: Any) -> torch.Tensor:
    """A list or an array of places; an empty list selects nothing."""
    index = torch.as_tensor(part)
    return index if index.numel() else index.long()


def _stored(value: Any, by_index: bool) -> Any:
    """A value to be stored, as the host's tensor takes it; a slice takes values of the host, an index doesn't."""
    if isinstance(value, SimTensor):
        return value.backing
    if isinstance(value, torch.Tensor):
        if value.dim() and by_index:
            raise _mixed(_aten.index_put_.default, value)
        if value.dim():
            note("upload", "copy to the device", value.nbytes, waits=True)
            STREAM.land()
        else:
            _count_scalar()
    return value


def _index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    if not isinstance(self, SimTensor):
        raise RuntimeError(f"indices should be on the same device as the indexed tensor ({self.device}) or on the host")
    parts = [None if part is None else _index_part(part) for part in indices]
    return _launched(STREAM.launch(_aten.index.Tensor, self.backing, parts), (self,))  # type: ignore[no-any-return]


def _index_put_(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    own = _own(self, _aten.index_put_.default)
    fills = values.numel() == 1 and not accumulate
    parts = [None if part is None else _index_part(part, fills) for part in indices]
    stored = _stored(values, by_index=True)
    STREAM.launch(_aten.index_put_.default, own.backing, parts, stored, accumulate, writes=(own.backing,))
    count_kernel(own)
    return own


_SPECIAL: Final[dict[Any, Callable[..., Any]]] = {
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: copy,
    _aten.index.Tensor: _index,
    _aten.index_put_.default: _index_put_,
    _aten._local_scalar_dense.default: SimTensor.item,
    _aten.detach_.default: lambda tensor: tensor,
}
