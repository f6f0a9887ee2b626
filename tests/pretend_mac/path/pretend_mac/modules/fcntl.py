"""fcntl on a Mac: F_FULLFSYNC flushes the drive, and Linux's pipe and seal calls are missing."""

from __future__ import annotations

import os
from typing import Any

from pretend_mac import machine

FULL_FSYNC = 51
MISSING = {"F_ADD_SEALS", "F_GETPIPE_SZ", "F_GET_SEALS", "F_SETPIPE_SZ", "F_NOTIFY", "F_SETLEASE", "F_GETLEASE"}


def changed(real: Any) -> dict[str, Any]:
    def fcntl(fd: Any, command: int, argument: Any = 0) -> Any:
        if command == FULL_FSYNC:
            with (machine.folder() / "flushed").open("a") as log:
                log.write("F_FULLFSYNC\n")
            os.fsync(fd)
            return 0
        return real.fcntl(fd, command, argument)

    return {"F_FULLFSYNC": FULL_FSYNC, "fcntl": fcntl}
