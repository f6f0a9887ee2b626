"""TensorFlow with tensorflow-metal: one GPU, whose memory counters say 0, and a runtime that is fixed once it is up.

The work is done by the CPU. What Metalmark asks TensorFlow about the GPU is answered as the plug-in does.
"""

from __future__ import annotations

from typing import Any

from pretend_mac import machine
from pretend_mac.stand_ins import StandIn


class Gpu:
    name, device_type = "/physical_device:GPU:0", "GPU"


def changed(real: Any) -> dict[str, Any]:
    installed = machine.has_metal("tensorflow")
    version = machine.package("tensorflow") or real.__version__
    plugged: list[Any] = [Gpu()] if installed else []
    visible = list(plugged)

    def list_physical_devices(kind: str | None = None) -> list[Any]:
        return list(plugged) if kind == "GPU" else list(real.config.list_physical_devices(kind))

    def get_visible_devices(kind: str | None = None) -> list[Any]:
        return list(visible) if kind == "GPU" else list(real.config.get_visible_devices(kind))

    def set_visible_devices(devices: list[Any], kind: str | None = None) -> None:
        if kind != "GPU":
            real.config.set_visible_devices(devices, kind)
            return
        if devices != visible and _is_up():
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        visible[:] = devices

    def get_memory_info(_: str) -> dict[str, int]:
        return {"current": 0, "peak": 0}

    class DeviceSpec(real.DeviceSpec):  # type: ignore[misc]
        @classmethod
        def from_string(cls, text: str) -> Any:
            return real.DeviceSpec.from_string(text.replace("CPU:0", "GPU:0") if visible else text)

    experimental = {
        "get_memory_info": get_memory_info,
        "reset_memory_stats": lambda _: None,
        "set_memory_growth": lambda *_: None,
        "get_device_details": lambda _: {},
    }
    config = {
        "list_physical_devices": list_physical_devices,
        "get_visible_devices": get_visible_devices,
        "set_visible_devices": set_visible_devices,
    }
    if installed:
        config["experimental"] = StandIn(real.config.experimental, experimental, set())
    return {"__version__": version, "DeviceSpec": DeviceSpec, "config": StandIn(real.config, config, set())}


def _is_up() -> bool:
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None
