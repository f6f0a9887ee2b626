"""select on a Mac: a kqueue that knows how to wait for the end of a process, and no epoll."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MISSING = {"epoll", *(f"EPOLL{name}" for name in ("IN", "OUT", "ERR", "HUP", "ET", "ONESHOT", "PRI"))}
FILTER_PROC, NOTE_EXIT, EV_ADD, EV_ONESHOT, EV_ERROR = -5, 0x80000000, 0x1, 0x10, 0x4000


@dataclass(frozen=True)
class Kevent:
    ident: int
    filter: int = -1
    flags: int = EV_ADD
    fflags: int = 0
    data: int = 0
    udata: int = 0


class Kqueue:
    """Waits for exits of children alone. As on Darwin, one that has exited already is not found, and as kevent does
    where there is room for an event, it reports that as one."""

    def __init__(self) -> None:
        self._closed = False

    def control(self, changes: Sequence[Kevent] | None, most: int, timeout: float | None = None) -> list[Kevent]:
        if self._closed:
            raise ValueError("I/O operation on closed kqueue object")
        (event,) = changes or ()
        if (event.filter, event.fflags) != (FILTER_PROC, NOTE_EXIT) or not most:
            raise NotImplementedError("the stand-in's kqueue waits for the exit of a process and for nothing else")
        if _has_exited(event.ident):
            return [replace(event, flags=event.flags | EV_ERROR, data=errno.ESRCH)]
        waiter = threading.Thread(target=_wait, args=(event.ident,), daemon=True)
        waiter.start()
        waiter.join(timeout)
        return [] if waiter.is_alive() else [event]

    def close(self) -> None:
        self._closed = True


def changed(_: Any) -> dict[str, Any]:
    return {
        "kqueue": Kqueue,
        "kevent": Kevent,
        "KQ_FILTER_PROC": FILTER_PROC,
        "KQ_NOTE_EXIT": NOTE_EXIT,
        "KQ_EV_ADD": EV_ADD,
        "KQ_EV_ONESHOT": EV_ONESHOT,
        "KQ_EV_ERROR": EV_ERROR,
    }


def _wait(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _has_exited(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
