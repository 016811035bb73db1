"""What a checker may see of a tensor wherever it lies: its data, and the memory that it shares and retains.

A checker's looks are its own: on the simulated device they cost no wait and leave no trace in an audit.
"""

import torch

from oracle.device.tensor import SimTensor


def data(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or the host tensor behind one of the simulated device."""
    return tensor.backing if isinstance(tensor, SimTensor) else tensor


def address(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return data(tensor).untyped_storage().data_ptr()


def retained_bytes(tensor: torch.Tensor) -> int:
    """Bytes that can't be freed while the tensor lives."""
    return data(tensor).untyped_storage().nbytes()
