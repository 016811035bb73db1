"""Devices by name, as the command line takes them."""

import torch

from oracle.device.backend import NoDeviceError, enable

NAMES = ("auto", "cpu", "cuda", "sim")


def named(name: str) -> torch.device:
    """The device of a name; `auto` is CUDA if there is one, else the CPU.

    Raises:
        NoDeviceError: there is none here.
    """
    if name == "sim" or name.startswith("sim:"):
        return enable()
    there = torch.cuda.is_available()
    if name.startswith("cuda") and not there:
        raise NoDeviceError("there is no CUDA device here; run with --device cpu, or with --device sim")
    return torch.device("cuda:0" if name.startswith("cuda") or (name == "auto" and there) else "cpu")
