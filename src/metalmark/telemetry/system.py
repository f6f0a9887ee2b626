"""SystemSensor and PagingSensor: what memory the whole machine has left, and whether it swaps."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from metalmark.machine.apple import COMMANDS, parse_free_memory
from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent
from metalmark.telemetry.base import Reading, Sensor, Unit, figure
from metalmark.telemetry.tool import AnswerSensor, RunTool

_VMSTAT = Path("/proc/vmstat")
_PAGE = re.compile(r"page size of (\d{1,9}) bytes")
_SWAPPED = re.compile(r"^Swap(in|out)s:\s*(\d{1,18})\.?\s*$", re.MULTILINE)
_LINUX = sys.platform == "linux"

# On a Mac psutil's counters include every page read from a file, so there they are no evidence of swapping.
_TRAFFIC = "swap" if _LINUX else "page"
# psutil assumes pages of 4 KiB; on many Arm servers they have 64.
_TRAFFIC_SCALE = os.sysconf("SC_PAGE_SIZE") / 4096 if _LINUX else 1.0


class SystemSensor(Sensor):
    """The memory and processors of the machine, with the work of others included.

    `system_swap_in` and `system_swap_out` (on a Mac `system_page_in` and `_out`) count from the first reading.
    """

    name = "system"
    source = "psutil"

    def __init__(self) -> None:
        self._swap_absent: Absent | None = None
        self._traffic_start: tuple[int, int] | None = None
        self._cpu_s: tuple[float, float] | None = None

    def available(self) -> str | None:
        try:
            if _LINUX and b"pswpin " not in _VMSTAT.read_bytes():
                self._swap_absent = Absent("this kernel counts no swapped pages")
        except OSError as error:
            self._swap_absent = Absent(f"the kernel's page counters can't be read: {error.strerror}")
        return None

    def read(self) -> list[Reading]:
        available_bytes = psutil.virtual_memory().available
        readings = [Reading(name="system_memory_available", unit=Unit.BYTES, value=available_bytes)]
        readings += self._swap()
        busy_s, total_s = _cpu_s(psutil.cpu_times())
        if self._cpu_s is not None and total_s > self._cpu_s[1]:
            share = (busy_s - self._cpu_s[0]) / (total_s - self._cpu_s[1])
            # The kernel's idle counters may step back by a tick.
            readings.append(Reading(name="system_cpu", unit=Unit.PERCENT, value=100 * min(max(share, 0.0), 1.0)))
        self._cpu_s = busy_s, total_s
        return readings

    def _swap(self) -> list[Reading]:
        names = ("system_swap_used", f"system_{_TRAFFIC}_in", f"system_{_TRAFFIC}_out")
        values: tuple[float | Absent, ...]
        if self._swap_absent is not None:
            # psutil would warn, and give zeros that nobody measured.
            values = (self._swap_absent,) * 3
        else:
            swap = psutil.swap_memory()
            if self._traffic_start is None:
                self._traffic_start = swap.sin, swap.sout
            moved_in, moved_out = swap.sin - self._traffic_start[0], swap.sout - self._traffic_start[1]
            values = swap.used, moved_in * _TRAFFIC_SCALE, moved_out * _TRAFFIC_SCALE
        return [Reading(name=name, unit=Unit.BYTES, value=value) for name, value in zip(names, values, strict=True)]


class PagingSensor(AnswerSensor):
    """A Mac's swap traffic and memory pressure, by `vm_stat` and `memory_pressure`. Needs no root.

    psutil's counters for a Mac include every page read from a file; these count what went to and came from swap.
    """

    name = "paging"
    source = "vm_stat"

    def __init__(self, run: RunTool = run_tool) -> None:
        parsers = {COMMANDS["vm_stat"]: self._since_start, COMMANDS["memory_pressure -Q"]: parse_pressure}
        super().__init__(parsers, run)
        self._start_bytes: dict[str, float] = {}

    def _since_start(self, text: str) -> list[Reading]:
        return [
            Reading(name=name, unit=Unit.BYTES, value=total - self._start_bytes.setdefault(name, total))
            for name, total in parse_vm_stat(text).items()
        ]


def parse_vm_stat(text: str) -> dict[str, float]:
    """Return the bytes swapped since the machine started, by series."""
    page = _PAGE.search(text)
    if page is None:
        return {}
    return {f"system_swap_{way}": float(int(pages) * int(page[1])) for way, pages in _SWAPPED.findall(text)}


def parse_pressure(text: str) -> list[Reading]:
    return figure("system_memory_free", Unit.PERCENT, parse_free_memory(text), "memory_pressure")


def _cpu_s(times: Any) -> tuple[float, float]:
    """Return the busy and total time of all processors. Guests are in `user` already; waiting for a disk is idle."""
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total_s - times.idle - getattr(times, "iowait", 0.0), total_s
