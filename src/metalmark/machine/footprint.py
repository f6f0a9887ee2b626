"""The memory that a process holds, where Linux and macOS differ.

On macOS the resident size leaves out what Metal has allocated for the process and what was compressed; the physical
footprint, which Activity Monitor shows as "Memory", has both. The kernel gives it for the user's own processes. psutil
does not have it, so libproc is asked. Elsewhere it is the resident size.
"""

import ctypes
import sys
from functools import cache
from typing import Any

import psutil  # type: ignore[import-untyped]

FOOTPRINT = "proc_pid_rusage, physical footprint"
RESIDENT = "psutil, resident size"
_RUSAGE_INFO_V0 = 0


class RusageInfo(ctypes.Structure):
    """`struct rusage_info_v0` of <sys/resource.h>."""

    _counts = (
        "user_time", "system_time", "pkg_idle_wkups", "interrupt_wkups", "pageins", "wired_size", "resident_size",
        "phys_footprint", "proc_start_abstime", "proc_exit_abstime",
    )  # fmt: skip
    _fields_ = (("ri_uuid", ctypes.c_uint8 * 16), *((f"ri_{name}", ctypes.c_uint64) for name in _counts))


@cache
def library() -> Any:
    """Return what is loaded into this process already: on macOS libproc is part of the system's own library."""
    return ctypes.CDLL(None, use_errno=True)


def source() -> str:
    if sys.platform == "darwin":
        return FOOTPRINT
    return RESIDENT


def memory_bytes(process: psutil.Process) -> int | None:
    """Return the memory of a process; None where it has ended or belongs to another user.

    Like psutil's own calls, it may raise psutil.NoSuchProcess and psutil.AccessDenied.
    """
    if sys.platform == "darwin":
        return physical_footprint(process.pid)
    # A process that has ended and was not waited for is still listed, with no memory.
    return process.memory_info().rss or None


def physical_footprint(pid: int) -> int | None:
    """Return the footprint as macOS counts it; None where the process has ended or belongs to another user."""
    info = RusageInfo()
    if library().proc_pid_rusage(pid, _RUSAGE_INFO_V0, ctypes.byref(info)) != 0:
        return None
    # Of a process that was not waited for yet, the kernel gives what it had when it exited.
    return None if info.ri_proc_exit_abstime else int(info.ri_phys_footprint) or None
