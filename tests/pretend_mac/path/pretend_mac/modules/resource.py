"""resource on a Mac: 256 open files, and a hard limit that is called unlimited and ends at 10,240."""

from __future__ import annotations

from typing import Any

MISSING = {"RLIMIT_OFILE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTTIME",
           "prlimit", "RUSAGE_THREAD"}  # fmt: skip
MOST_FILES = 10_240


def changed(real: Any) -> dict[str, Any]:
    infinity = 2**63 - 1

    def getrlimit(what: int) -> tuple[int, int]:
        soft, hard = real.getrlimit(what)
        unlimited = hard == real.RLIM_INFINITY or (what == real.RLIMIT_NOFILE and hard > MOST_FILES)
        return (infinity if soft == real.RLIM_INFINITY else soft), infinity if unlimited else hard

    def setrlimit(what: int, limits: tuple[int, int]) -> None:
        soft, hard = (real.RLIM_INFINITY if limit == infinity else limit for limit in limits)
        if what == real.RLIMIT_NOFILE:
            if soft == real.RLIM_INFINITY or soft > MOST_FILES:
                raise ValueError("current limit exceeds maximum limit")
            hard = real.getrlimit(what)[1] if hard == real.RLIM_INFINITY else hard
        real.setrlimit(what, (soft, hard))

    return {"RLIM_INFINITY": infinity, "getrlimit": getrlimit, "setrlimit": setrlimit}
