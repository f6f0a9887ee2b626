"""os on a Mac: calls that are not there, and Darwin's process groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pretend_mac import machine

# macOS's Python has waitid, and the names that go with it, from 3.13 on.
_WAITID = {
    "waitid", "waitid_result", "P_ALL", "P_PGID", "P_PID", "WEXITED", "WNOWAIT", "WSTOPPED", "CLD_CONTINUED",
    "CLD_DUMPED", "CLD_EXITED", "CLD_KILLED", "CLD_STOPPED", "CLD_TRAPPED",
}  # fmt: skip
MISSING = {
    "O_DIRECT", "O_PATH", "O_TMPFILE", "P_PIDFD", "SCHED_BATCH", "SCHED_IDLE", "copy_file_range", "eventfd",
    "fallocate", "getrandom", "getresgid", "getresuid", "getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2",
    "posix_fadvise", "posix_fallocate", "removexattr", "sched_get_priority_max", "sched_get_priority_min",
    "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_setaffinity", "sched_setparam",
    "sched_setscheduler", "sched_yield", "setns", "setresgid", "setresuid", "setxattr", "splice", "timerfd_create",
    "unshare", *(_WAITID if sys.version_info < (3, 13) else ()),
}  # fmt: skip
USER = 501
PAGE_BYTES = 16384


def changed(real: Any) -> dict[str, Any]:
    release = {"13": "22.6.0", "14": "23.6.0", "15": "24.6.0", "26": "25.1.0"}

    def uname() -> os.uname_result:
        version = release.get(str(machine.scene()["macos"]).partition(".")[0], "24.6.0")
        kernel = f"Darwin Kernel Version {version}"
        return real.uname_result(("Darwin", "mac.local", version, kernel, machine.scene()["architecture"]))

    def sysconf(name: str | int) -> int:
        pages = ("SC_PAGE_SIZE", "SC_PAGESIZE")
        return PAGE_BYTES if name in pages else int(real.sysconf(name))

    return {
        "uname": uname,
        "sysconf": sysconf,
        "killpg": killpg,
        "cpu_count": machine.cores,
        "geteuid": lambda: USER,
        "getuid": lambda: USER,
    }


def killpg(group: int, number: int) -> None:
    """Darwin passes zombies over: a group of nobody else is EPERM, where Linux has nothing to say."""
    states = [state for pid in os.listdir("/proc") if pid.isdigit() and (state := _state(int(pid), group))]
    if states and all(state == "Z" for state in states):
        raise PermissionError(1, "Operation not permitted")
    os.killpg(group, number)


def _state(pid: int, group: int) -> str | None:
    """The state of a process if it is in that group."""
    try:
        # The name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0] if int(fields[2]) == group else None
