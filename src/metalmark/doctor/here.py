"""What this process can see for itself, without asking a tool."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from metalmark.data.fetch import cache_folder
from metalmark.doctor.scene import Disk, OpenFiles, Swap
from metalmark.errors import MetalmarkError
from metalmark.machine.apple import PowerSource
from metalmark.machine.cgroup import limits
from metalmark.machine.cpu import logical_cores, visible_cores
from metalmark.machine.steering import steering_variables
from metalmark.machine.tools import to_count
from metalmark.telemetry.system import SystemSensor

QUIET_S = 0.3
_MEMINFO = Path("/proc/meminfo")
_SHARED_MEMORY = Path("/dev/shm")


def read() -> dict[str, Any]:
    """What takes no time."""
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {
        "platform": sys.platform,
        "architecture": platform.machine(),
        "macos": platform.mac_ver()[0] or None,
        "python": platform.python_version(),
        "environment": steering_variables(os.environ),
        "open_files": open_files(),
        "limits": limits(),
        "visible_cores": visible_cores(),
        "logical_cores": logical_cores(),
        "memory_bytes": memory.total,
    }
    if sys.platform == "linux":
        found["shared_memory_bytes"] = _capacity(_SHARED_MEMORY)
        found["memory_free_percent"] = round(100 * memory.available / memory.total) if memory.total else None
        found["swap"] = parse_meminfo(_text(_MEMINFO))
        found["power"] = _battery()
    return found


def open_files() -> OpenFiles:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(
        soft=None if soft == resource.RLIM_INFINITY else soft, hard=None if hard == resource.RLIM_INFINITY else hard
    )


def parse_meminfo(text: str) -> Swap | None:
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = to_count(value.replace("kB", ""))
    total, free = fields.get("SwapTotal"), fields.get("SwapFree")
    if total is None or free is None:
        return None
    return Swap(total_bytes=total * 1024, used_bytes=max(total - free, 0) * 1024)


def disks() -> tuple[Disk, ...]:
    """Where downloads, weights and compiled kernels go, folders that share a disk put together."""
    folders: dict[str, Callable[[], Path]] = {
        "data sets": cache_folder,
        "PyTorch's cache": lambda: Path(os.environ.get("TORCH_HOME") or "~/.cache/torch"),
        "Hugging Face's cache": lambda: Path(os.environ.get("HF_HOME") or "~/.cache/huggingface"),
        "Keras's cache": lambda: Path(os.environ.get("KERAS_HOME") or "~/.keras"),
        "temporary files": lambda: Path(tempfile.gettempdir()),
    }
    shared: dict[int, tuple[list[str], int]] = {}
    for label, folder in folders.items():
        try:
            place = folder().expanduser()
            while not place.exists() and place != place.parent:
                place = place.parent
            names, _ = shared.setdefault(place.stat().st_dev, ([], shutil.disk_usage(place).free))
        except (OSError, RuntimeError, MetalmarkError):
            # Not ours to see, or in the home folder of a user who has none: nothing would be written there.
            continue
        names.append(label)
    return tuple(Disk(folders=tuple(names), free_bytes=free_bytes) for names, free_bytes in shared.values())


def busy_cores() -> float | None:
    """What is used while we do nothing: by others, then."""
    sensor = SystemSensor()
    sensor.read()
    time.sleep(QUIET_S)
    percent = next((reading.value for reading in sensor.read() if reading.name == "system_cpu"), None)
    cores = psutil.cpu_count(logical=True)
    return round(percent / 100 * cores, 2) if isinstance(percent, float) and cores else None


def _battery() -> PowerSource | None:
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError, ValueError):  # no such folder in a container, or half of one
        return None
    if battery is None or battery.power_plugged is None:
        return None
    return PowerSource(on_battery=not battery.power_plugged, percent=round(battery.percent))


def _capacity(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
