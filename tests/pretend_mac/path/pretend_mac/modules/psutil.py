"""psutil in the shapes that it has on macOS."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil

from pretend_mac import machine

MISSING = {"sensors_temperatures", "sensors_fans", "PROCFS_PATH", "IOPRIO_CLASS_NONE", "RLIMIT_NOFILE"}

Memory = namedtuple("svmem", ["total", "available", "percent", "used", "free", "active", "inactive", "wired"])
Swap = namedtuple("sswap", ["total", "used", "free", "percent", "sin", "sout"])
Times = namedtuple("scputimes", ["user", "nice", "system", "idle"])
ProcessMemory = namedtuple("pmem", ["rss", "vms", "pfaults", "pageins"])
ProcessTimes = namedtuple("pcputimes", ["user", "system", "children_user", "children_system"])
Battery = namedtuple("sbattery", ["percent", "secsleft", "power_plugged"])


class Process(psutil.Process):
    """Another user's process answers hardly anything, and one that has exited nothing."""

    def memory_info(self) -> Any:
        self._ask()
        memory = super().memory_info()
        return ProcessMemory(rss=memory.rss, vms=memory.vms, pfaults=0, pageins=0)

    def cpu_times(self) -> Any:
        self._ask()
        times = super().cpu_times()
        return ProcessTimes(times.user, times.system, 0.0, 0.0)

    def children(self, recursive: bool = False) -> list[psutil.Process]:
        return [Process(child.pid) for child in super().children(recursive)]

    def _ask(self) -> None:
        if self.status() == psutil.STATUS_ZOMBIE:
            raise psutil.ZombieProcess(self.pid)
        if not _is_ours(self.pid):
            raise psutil.AccessDenied(self.pid)


def changed(real: Any) -> dict[str, Any]:
    def virtual_memory() -> Any:
        total = machine.memory_bytes()
        percent = real.virtual_memory().percent
        available = round(total * (1 - percent / 100))
        return Memory(total, available, percent, total - available, available // 2, 0, 0, total // 8)

    def swap_memory() -> Any:
        return Swap(total=2**30, used=2**28, free=2**30 - 2**28, percent=25.0, sin=2**34, sout=2**24)

    def cpu_times(percpu: bool = False) -> Any:  # noqa: ARG001
        times = real.cpu_times()
        # The cores that only the pretend machine has do nothing.
        more_idle_s = (machine.cores() - real.cpu_count()) * (sum(times) / real.cpu_count())
        return Times(times.user, times.nice, times.system, max(times.idle + more_idle_s, 0.0))

    def sensors_battery() -> Any:
        power = machine.scene().get("power")
        if not power or power.get("percent") is None:
            return None
        return Battery(power["percent"], -1, not power["on_battery"])

    return {
        "Process": Process,
        "virtual_memory": virtual_memory,
        "swap_memory": swap_memory,
        "cpu_times": cpu_times,
        "cpu_count": lambda logical=True: machine.cores() if logical else machine.physical_cores(),
        "sensors_battery": sensors_battery,
        "pids": lambda: [0, *real.pids()],
    }


def _is_ours(pid: int) -> bool:
    """A process that lives on this pretend machine."""
    try:
        return b"PRETEND_MAC=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
