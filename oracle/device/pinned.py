"""Which host memory counts as pinned, where there may be no accelerator to pin it for.

Only pinned memory is copied without a stop on the way: from it an upload may still be under way when the
call returns. Tensors are marked by their storage, so that views of pinned memory are pinned too.
"""

from weakref import WeakValueDictionary

import torch

_pinned: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Count a host tensor's memory as pinned from now on."""
    storage = tensor.untyped_storage()
    _pinned[storage._cdata] = storage
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a host tensor's memory counts as pinned."""
    return tensor.untyped_storage()._cdata in _pinned
