"""The memory of a process: macOS's way with a stand-in for its library, and this system's own."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from metalmark.machine import footprint
from metalmark.machine.processes import wait_for_exit
from metalmark.telemetry.process import ProcessSensor

GIB = 2**30
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)

Rusage = Callable[[int, int, int], int]


def libproc(answer: Rusage) -> SimpleNamespace:
    """A library whose one function is called as C calls it, with an address to write to."""
    return SimpleNamespace(proc_pid_rusage=SIGNATURE(answer))


def kernel(footprints: dict[int, int], exited: tuple[int, ...] = ()) -> Rusage:
    """Writes the ten numbers in the order of <sys/resource.h>; refuses a process that it does not know."""

    def proc_pid_rusage(pid: int, flavor: int, address: int) -> int:
        assert flavor == 0
        if pid not in footprints:
            return -1
        exit_time = 99 if pid in exited else 0
        written = struct.pack("=16s10Q", b"u" * 16, 1, 2, 3, 4, 5, 6, 7 * GIB, footprints[pid], 9, exit_time)
        ctypes.memmove(address, written, len(written))
        return 0

    return proc_pid_rusage


def test_the_footprint_is_read_where_the_kernel_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "library", lambda: libproc(kernel({41: 3 * GIB, 42: 5 * GIB}, exited=(42,))))
    assert ctypes.sizeof(footprint.RusageInfo) == 96
    assert footprint.physical_footprint(41) == 3 * GIB
    assert footprint.physical_footprint(42) is None  # it has exited, and nobody waited for it yet
    assert footprint.physical_footprint(43) is None  # another user's, or nobody's


def test_a_worker_on_a_mac_is_measured_by_its_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        monkeypatch.setattr(footprint, "sys", SimpleNamespace(platform="darwin"))
        monkeypatch.setattr(footprint, "library", lambda: libproc(kernel({os.getpid(): GIB, child.pid: 2 * GIB})))
        sensor = ProcessSensor(os.getpid())
        assert sensor.available() is None
        (memory,) = [reading for reading in sensor.read() if reading.name == "process_memory"]
        assert memory.value == 3 * GIB
        assert memory.source == "proc_pid_rusage, physical footprint"
        child.kill()


def test_here_it_is_what_the_system_tells() -> None:
    process = psutil.Process()
    found = footprint.memory_bytes(process)
    assert found is not None
    assert found > 2**20
    if sys.platform == "darwin":
        assert footprint.source() == footprint.FOOTPRINT
    else:
        assert footprint.source() == footprint.RESIDENT
        assert found == pytest.approx(process.memory_info().rss, rel=0.2)


def test_a_process_that_ended_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_for_exit(child.pid)
    assert footprint.memory_bytes(psutil.Process(child.pid)) is None
    child.wait()
