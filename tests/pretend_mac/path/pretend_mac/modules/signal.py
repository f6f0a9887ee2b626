"""signal on a Mac: no real-time signals, and none of the calls that wait for one."""

from __future__ import annotations

from typing import Any

MISSING = {
    "SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "SIGCLD", "pidfd_send_signal", "sigtimedwait",
    "sigwaitinfo",
}  # fmt: skip


def changed(_: Any) -> dict[str, Any]:
    return {}
