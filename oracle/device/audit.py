"""One audit for every device: what a piece of code made the device do, and where it made the host wait.

On the simulated device every crossing is seen as it happens. On CUDA the waits come from torch's sync
debug mode and, if asked for, copies and kernels from its profiler. On the CPU there is nothing to see.

Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
"""

import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from oracle.device.ops import NAME
from oracle.device.record import Crossing, Record, Way, note, recording

_SYNC_WARNING: Final = "called a synchronizing CUDA operation"
_PROTOTYPE_WARNING: Final = "Synchronization debug mode is a prototype feature"


@contextmanager
def audit(device: torch.device, profiles: bool = False) -> Iterator[Record]:
    """Note what the device is asked for in the block.

    Args:
        device: where the tensors lie.
        profiles: on CUDA, see copies and kernels too, which is slow and waits for the device at the end.

    Yields:
        The record; it is complete when the block is left.
    """
    record = Record()
    if device.type == NAME:
        with recording(record):
            yield record
    elif device.type == "cuda":
        with _profiled(record) if profiles else nullcontext(), recording(record), _sync_debug_mode():
            yield record
    else:
        yield record


@contextmanager
def unaudited() -> Iterator[None]:
    """Leave the block out of an audit that is going on: it is the checker's own business."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if mode:
        torch.cuda.set_sync_debug_mode(0)
    try:
        with recording(None):
            yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _sync_debug_mode() -> Iterator[None]:
    """Turn each warning of the mode into a wait, noted where it came up; pass on all other warnings."""
    show = warnings.showwarning

    def heard(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if _SYNC_WARNING in str(message):
            note("sync", "wait", 0, waits=True)
        else:
            show(message, *args, **kwargs)

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_SYNC_WARNING)
        warnings.filterwarnings("ignore", message=_PROTOTYPE_WARNING)
        warnings.showwarning = heard
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _profiled(record: Record) -> Iterator[None]:
    """Add what ran on the device, once it is done."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        yield
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(file))
        add_trace(record, json.loads(file.read_text())["traceEvents"])


def add_trace(record: Record, events: list[dict[str, Any]]) -> None:
    """Add the device's part of a profiler trace: kernels, memsets and copies."""
    for event in events:
        kind, name = event.get("cat"), event.get("name", "")
        if kind == "gpu_memcpy" and ("DtoH" in name or "HtoD" in name):
            way: Way = "read" if "DtoH" in name else "upload"
            record.crossings.append(Crossing(way, name, int(event.get("args", {}).get("bytes", 0)), False, ""))
        elif kind in ("kernel", "gpu_memset", "gpu_memcpy"):
            record.kernels += 1
