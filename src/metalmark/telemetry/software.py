"""SoftwareSensor: what the sensors of a machine would say while the software device has a fault that they can see."""

import time
from collections.abc import Callable

from metalmark.model.plan import Plan
from metalmark.telemetry.base import Reading, Sensor, Unit

SWAPPED_BYTES_PER_S = 64 * 2**20
CLOCKS_MHZ = 2000.0, 1000.0
"""At first, and when it is hot."""
HOT_S = 4.0
"""How long the device takes to become hot."""
VISIBLE_FAULTS = {"swap", "throttle"}


def visible_faults(plan: Plan) -> set[str]:
    """Return those of the software device's faults that sensors see; none on any real device."""
    return set(str(plan.params.get("fault", "")).split("+")) & VISIBLE_FAULTS if plan.framework == "fake" else set()


class SoftwareSensor(Sensor):
    """Readings of a machine that swaps, or of a device that becomes hot. The device is telemetry's gpu0."""

    name = "software"
    source = "software device"

    def __init__(self, faults: set[str], now: Callable[[], float] = time.monotonic) -> None:
        self._faults, self._now = faults, now
        self._began_s: float | None = None

    def read(self) -> list[Reading]:
        now_s = self._now()
        self._began_s = now_s if self._began_s is None else self._began_s
        elapsed_s = now_s - self._began_s
        readings: list[Reading] = []
        if "swap" in self._faults:
            moved_bytes = elapsed_s * SWAPPED_BYTES_PER_S
            readings += [
                Reading(name=f"system_swap_{way}", unit=Unit.BYTES, value=moved_bytes) for way in ("in", "out")
            ]
        if "throttle" in self._faults:
            cool_mhz, hot_mhz = CLOCKS_MHZ
            heat = min(elapsed_s / HOT_S, 1.0)
            held_down = float(elapsed_s > 0)
            readings += [
                Reading(name="gpu0_clock", unit=Unit.MEGAHERTZ, value=cool_mhz + heat * (hot_mhz - cool_mhz)),
                Reading(name="gpu0_utilisation", unit=Unit.PERCENT, value=99.0),
                Reading(name="gpu0_throttle", unit=Unit.RATIO, value=held_down),
                Reading(name="gpu0_throttle_sw_thermal", unit=Unit.RATIO, value=held_down),
            ]
        return readings
