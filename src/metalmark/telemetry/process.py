"""ProcessSensor: what the worker and its descendants use."""

import time

import psutil  # type: ignore[import-untyped]

from metalmark.machine import footprint
from metalmark.telemetry.base import Reading, Sensor, Unit, figure

_REFRESH_S = 1.0


class ProcessSensor(Sensor):
    """CPU time and memory, summed over a process and its descendants.

    The memory is what `metalmark.machine.footprint` gives on this system. Resident pages that processes share are
    counted once in each. A descendant is counted from the first reading that sees it, about a second after its start at
    the latest; CPU time that it used before that is not.
    """

    name = "process"
    source = "psutil"

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._root: psutil.Process | None = None
        self._descendants: dict[int, psutil.Process] = {}
        self._seen_pids: set[int] = set()
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
        memory_bytes = 0
        for process in self._tree(now):
            try:
                times, held_bytes = process.cpu_times(), footprint.memory_bytes(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended since the last look, or became another user's
            if held_bytes is not None:
                cpu_s[process] = times.user + times.system
                memory_bytes += held_bytes
        before, elapsed_s = self._cpu_s, now - self._read_at_s
        self._cpu_s, self._read_at_s = cpu_s, now
        if not cpu_s:
            return []
        readings = figure("process_memory", Unit.BYTES, memory_bytes, footprint.source())
        if before and elapsed_s > 0:
            used_s = sum(total_s - before.get(process, total_s) for process, total_s in cpu_s.items())
            readings.append(Reading(name="process_cpu", unit=Unit.PERCENT, value=100 * used_s / elapsed_s))
        return readings

    def close(self) -> None:
        self._root = None
        self._descendants = {}

    def _tree(self, now: float) -> list[psutil.Process]:
        if self._root is None:
            return []
        if now >= self._refresh_at_s:
            self._refresh_at_s = now + _REFRESH_S
            try:
                self._find_descendants(self._root)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                self._descendants = {}
        return [self._root, *self._descendants.values()]

    def _find_descendants(self, root: psutil.Process) -> None:
        """Ask only processes that were not there last time: asking all of them, as psutil does, takes milliseconds on a
        busy machine, and the parent of an old one can't have changed."""
        pids, seen_pids = set(psutil.pids()), self._seen_pids
        if not seen_pids:
            self._descendants = {child.pid: child for child in root.children(recursive=True)}
            self._seen_pids = pids
            return
        self._seen_pids = pids
        new: dict[int, tuple[psutil.Process, int]] = {}
        for pid in pids - seen_pids:
            try:
                process = psutil.Process(pid)
                new[pid] = process, process.ppid()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it has ended already, or is another user's
        family = {pid: process for pid, process in self._descendants.items() if pid in pids}
        # A child may be listed before its parent, so repeat until a pass finds no more.
        while found := {
            pid: process
            for pid, (process, parent_pid) in new.items()
            if pid not in family and (parent_pid == root.pid or parent_pid in family)
        }:
            family |= found
        self._descendants = family
