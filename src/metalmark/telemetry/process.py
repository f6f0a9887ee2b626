"""ProcessSensor: what the worker and its descendants use."""

from __future__ import annotations

import time

import psutil  # type: ignore[import-untyped]

from metalmark.telemetry.base import Reading, Unit

_REFRESH_S = 1.0
_REFRESH_SHARE = 0.005
"""Finding descendants scans every process there is: as often as fits into half a percent of a core."""


class ProcessSensor:
    """CPU time and resident memory, summed over a process and its descendants.

    Pages that processes share are counted once in each. A descendant is counted from the first reading that
    sees it, about a second after its start at the latest; CPU time that it used before that is not.
    """

    name = "process"
    source = "psutil"

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root: psutil.Process | None = None
        self._descendants: list[psutil.Process] = []
        self._refresh_at_s = 0.0
        self._cpu_s: dict[psutil.Process, float] = {}
        self._read_at_s = 0.0

    def available(self) -> str | None:
        try:
            root = psutil.Process(self._pid)
            root.cpu_times()
        except psutil.NoSuchProcess:
            return "the process had ended before it could be read"
        except psutil.AccessDenied:
            return "the system does not let this user read the process"
        self._root = root
        return None

    def read(self) -> list[Reading]:
        now = time.monotonic()
        cpu_s: dict[psutil.Process, float] = {}
        resident_bytes = 0
        for process in self._tree(now):
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended since the last look, or became another user's
            # A process that has ended and was not waited for is still listed, with no memory.
            if memory.rss > 0:
                cpu_s[process] = times.user + times.system
                resident_bytes += memory.rss
        before, elapsed_s = self._cpu_s, now - self._read_at_s
        self._cpu_s, self._read_at_s = cpu_s, now
        if not cpu_s:
            return []
        readings = [Reading(name="process_memory", unit=Unit.BYTES, value=resident_bytes)]
        if before and elapsed_s > 0:
            used_s = sum(total_s - before.get(process, total_s) for process, total_s in cpu_s.items())
            readings.append(Reading(name="process_cpu", unit=Unit.PERCENT, value=100 * used_s / elapsed_s))
        return readings

    def close(self) -> None:
        self._root = None
        self._descendants = []

    def _tree(self, now: float) -> list[psutil.Process]:
        if self._root is None:
            return []
        if now >= self._refresh_at_s:
            began_s = time.thread_time()
            try:
                self._descendants = self._root.children(recursive=True)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                self._descendants = []
            cost_s = time.thread_time() - began_s
            self._refresh_at_s = now + max(_REFRESH_S, cost_s / _REFRESH_SHARE)
        return [self._root, *self._descendants]
