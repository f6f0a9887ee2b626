"""time on a Mac: clocks that go on in sleep, and one that does not. `machine.slept_s` is how long it slept."""

from __future__ import annotations

from typing import Any

from pretend_mac import machine

UPTIME_RAW, MONOTONIC, MONOTONIC_RAW = 8, 6, 4
MISSING = {"CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"}


def changed(real: Any) -> dict[str, Any]:
    def clock_gettime(clock: int) -> float:
        if clock == UPTIME_RAW:
            return float(real.clock_gettime(real.CLOCK_MONOTONIC))
        if clock in (MONOTONIC, MONOTONIC_RAW):
            return float(real.clock_gettime(real.CLOCK_MONOTONIC)) + machine.slept_s()
        return float(real.clock_gettime(clock))

    return {
        "CLOCK_UPTIME_RAW": UPTIME_RAW,
        "CLOCK_MONOTONIC": MONOTONIC,
        "CLOCK_MONOTONIC_RAW": MONOTONIC_RAW,
        "clock_gettime": clock_gettime,
        "time": lambda: real.time() + machine.slept_s(),
    }
