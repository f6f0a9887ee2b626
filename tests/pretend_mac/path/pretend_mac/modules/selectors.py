"""selectors on a Mac: nothing of Linux's epoll."""

from __future__ import annotations

from typing import Any

MISSING = {"EpollSelector"}


def changed(real: Any) -> dict[str, Any]:
    return {"DefaultSelector": real.PollSelector, "KqueueSelector": real.PollSelector}
