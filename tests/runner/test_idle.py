"""Idle power: from watts where there are any, else from joules, and no wait for what is not there."""

from __future__ import annotations

import time

from metalmark.runner.idle import idle_watts
from metalmark.telemetry.base import Reading, Unit


class Meter:
    """30 W, and joules that count up at 12 W."""

    name, source = "meter", "test"

    def __init__(self, *names: str) -> None:
        self._names = names

    def available(self) -> str | None:
        return None if self._names else "there is none"

    def read(self) -> list[Reading]:
        values = {"gpu0_power": (Unit.WATTS, 30.0), "cpu_energy": (Unit.JOULES, 12.0 * time.monotonic())}
        still = {"ane_energy": (Unit.JOULES, 5.0), "gpu0_temperature": (Unit.CELSIUS, 40.0)}
        both = {**values, **still}
        return [Reading(name=name, unit=both[name][0], value=both[name][1]) for name in self._names]

    def close(self) -> None: ...


def test_watts_and_joules() -> None:
    meter = Meter("gpu0_power", "cpu_energy", "ane_energy", "gpu0_temperature")
    found = idle_watts(lambda: [meter], idle_s=0.5)
    assert set(found) == {"gpu0", "cpu"}, "a counter that stands still tells nothing"
    assert found["gpu0"] == 30.0
    assert abs(found["cpu"] / 12.0 - 1) < 0.2


def test_nothing_tells() -> None:
    assert idle_watts(lambda: [Meter()], first_reading_s=0.1) == {}
    assert idle_watts(lambda: [Meter("gpu0_temperature")], first_reading_s=0.1) == {}
