"""ctypes on a Mac: libproc's proc_pid_rusage, filled with what this machine says of the process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

METAL_BYTES = 64 << 20
"""What a process holds in Metal's buffers, which its resident size leaves out."""
FOOTPRINT_AT = 16 + 7 * 8
"""Behind the identifier and seven counters."""


class Rusage:
    """`proc_pid_rusage(pid, flavor, buffer)`; argument and result types may be set, as of any C function."""

    argtypes: Any = None
    restype: Any = ctypes.c_int

    def __call__(self, pid: Any, flavor: Any, buffer: Any) -> int:  # noqa: ARG002
        number = int(getattr(pid, "value", pid))
        try:
            pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
        except OSError:
            pages = 0
        if pages == 0:
            ctypes.set_errno(3)
            return -1
        target = getattr(buffer, "_obj", buffer)
        address = ctypes.addressof(target.contents if hasattr(target, "contents") else target)
        footprint = ctypes.c_uint64(pages * 4096 + METAL_BYTES)
        ctypes.memmove(address + FOOTPRINT_AT, ctypes.byref(footprint), 8)
        return 0


class Library:
    def __init__(self, *_: object, **__: object) -> None:
        self.proc_pid_rusage = Rusage()


def changed(_: Any) -> dict[str, Any]:
    return {"CDLL": Library}
