"""BatterySensor: whether the machine runs on its battery or saves power."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from metalmark.machine.apple import BATTERY, POWER_SETTINGS, parse_low_power, parse_power
from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent
from metalmark.telemetry.answers import ToolAnswers
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.pace import TOOL_EVERY_S, Pace

_PROFILE = Path("/sys/firmware/acpi/platform_profile")
_EVERY_S = 1.0


class BatterySensor:
    name = "battery"
    source = "psutil"

    def __init__(self, battery: Callable[[], Any] | None = None, profile: Path = _PROFILE) -> None:
        self._battery = battery or _psutil_battery
        self._profile = profile
        self._pace = Pace(_EVERY_S)

    def available(self) -> str | None:
        return None if self._ask() else "no battery is seen from here"

    def read(self) -> list[Reading]:
        return self._ask() if self._pace.due() else []

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self) -> list[Reading]:
        readings: list[Reading] = []
        battery = self._battery()
        if battery is not None:
            readings.append(Reading(name="battery_charge", unit=Unit.PERCENT, value=battery.percent))
            if battery.power_plugged is not None:
                readings.append(_state("on_battery", not battery.power_plugged, None))
        try:
            profile = self._profile.read_text().strip()
        except OSError:  # most machines have none
            return readings
        return [*readings, _state("low_power_mode", profile == "low-power", "acpi")]


class MacBatterySensor:
    """The same from `pmset`, which also knows about low-power mode."""

    name = "battery"
    source = "pmset"

    def __init__(self, run: Callable[..., str | Absent] = run_tool) -> None:
        self._tools = ToolAnswers({BATTERY: parse_batt, POWER_SETTINGS: parse_settings}, every_s=TOOL_EVERY_S, run=run)

    def available(self) -> str | None:
        return self._tools.available()

    def read(self) -> list[Reading]:
        return self._tools.read()

    def close(self) -> None:
        """Nothing is held open."""


def _psutil_battery() -> Any:
    # psutil has it only for systems that it can ask.
    return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None


def parse_batt(text: str) -> list[Reading]:
    """`pmset -g batt`: where the power comes from; a Mac without a battery has no charge."""
    power = parse_power(text)
    if power is None:
        return []
    readings = [_state("on_battery", power.on_battery, None)]
    if power.percent is not None:
        readings.append(Reading(name="battery_charge", unit=Unit.PERCENT, value=power.percent))
    return readings


def parse_settings(text: str) -> list[Reading]:
    """`pmset -g`: the settings in force."""
    low_power = parse_low_power(text)
    return [] if low_power is None else [_state("low_power_mode", low_power, None)]


def _state(name: str, on: bool, source: str | None) -> Reading:
    return Reading(name=name, unit=Unit.RATIO, value=float(on), source=source)
