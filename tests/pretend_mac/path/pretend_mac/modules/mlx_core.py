"""MLX on a Mac: Metal is there and does its work on the CPU; too much memory aborts the process, as Metal does."""

from __future__ import annotations

import os
import sys
from typing import Any

from pretend_mac import machine
from pretend_mac.stand_ins import StandIn


def changed(real: Any) -> dict[str, Any]:
    if not machine.has_metal("mlx"):
        return {}
    default = [real.Device(real.gpu)]
    limit_bytes = int(os.environ.get("PRETEND_MAC_MLX_MIB", "0")) << 20

    def set_default_device(device: Any) -> None:
        default[0] = device

    def evaluate(*arrays: Any) -> None:
        real.eval(*arrays)
        if limit_bytes and real.get_active_memory() > limit_bytes:
            message = "[METAL] Command buffer execution failed: Insufficient Memory (00000008:"
            sys.stderr.write(f"{message}kIOGPUCommandBufferCallbackErrorOutOfMemory)\n")
            sys.stderr.flush()
            os.abort()

    information = {"device_name": machine.gpu_name(), "architecture": "applegpu"}
    metal = StandIn(real.metal, {"is_available": lambda: True, "device_info": lambda: information}, set())
    return {
        "metal": metal,
        "default_device": lambda: default[0],
        "set_default_device": set_default_device,
        "device_info": lambda *_: information,
        "device_count": lambda *_: 1,
        "eval": evaluate,
    }
