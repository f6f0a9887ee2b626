"""The simulated device's module, `torch.simulated`, and what PyTorch calls to load it when it is itself imported.

It is copied beside the built library, where worker processes find it as a vendor's plugin would be found.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("libsimulated.so")


def autoload() -> None:
    torch.ops.load_library(str(LIBRARY))
    torch.utils.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", sys.modules[__name__])
    # For such a device `Module.to` would make a new parameter for each name, and weights that are shared would not be.
    torch.__future__.set_swap_module_params_on_conversion(True)
    # Not above: PyTorch is being imported when it loads this module, and the faults replace what it has by then.
    importlib.import_module("simulated_faults").inject_asked()


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def synchronize(device: object = None) -> None:
    torch.accelerator.synchronize(device)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def held_bytes() -> int:
    """What the device's tensors hold now."""
    count = ctypes.CDLL(str(LIBRARY)).simulated_held
    count.restype = ctypes.c_size_t
    return int(count())


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    """Random numbers are the CPU's here, and PyTorch has seeded them."""
