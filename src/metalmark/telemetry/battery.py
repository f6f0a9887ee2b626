"""The machine's power: whether it runs on its battery, saves power, or is held back because of heat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from metalmark.machine.apple import COMMANDS, Heat, parse_heat, parse_low_power, parse_power
from metalmark.machine.tools import run_tool
from metalmark.telemetry.base import Reading, ReadInterval, Sensor, Unit, figure
from metalmark.telemetry.tool import AnswerSensor, RunTool

_PROFILE = Path("/sys/firmware/acpi/platform_profile")
_EVERY_S = 1.0


class BatterySensor(Sensor):
    """Whether a Linux machine runs on its battery or saves power."""

    name = "battery"
    source = "psutil"

    def __init__(self, battery: Callable[[], Any] | None = None, profile: Path = _PROFILE) -> None:
        self._battery = battery or _psutil_battery
        self._profile = profile
        self._interval = ReadInterval(_EVERY_S)

    def available(self) -> str | None:
        return None if self._ask() else "no battery is seen from here"

    def read(self) -> list[Reading]:
        return self._ask() if self._interval.due() else []

    def _ask(self) -> list[Reading]:
        readings: list[Reading] = []
        battery = self._battery()
        if battery is not None:
            readings += figure("battery_charge", Unit.PERCENT, battery.percent)
            if battery.power_plugged is not None:
                readings.append(_state("on_battery", not battery.power_plugged))
        try:
            profile = self._profile.read_text().strip()
        except OSError:  # most machines have none
            return readings
        return [*readings, _state("low_power_mode", profile == "low-power", "acpi")]


class MacBatterySensor(AnswerSensor):
    """The same from `pmset`, which also knows about low-power mode."""

    name = "battery"
    source = "pmset"

    def __init__(self, run: RunTool = run_tool) -> None:
        super().__init__({COMMANDS["pmset -g batt"]: parse_batt, COMMANDS["pmset -g"]: parse_settings}, run)


class ThermalSensor(AnswerSensor):
    """Whether macOS holds the machine back because of heat, by `pmset -g therm`. Needs no root.

    A Mac that was never held back says only that it has nothing to say: that is a warning of 0, and no limit.
    """

    name = "thermal"
    source = "pmset"

    def __init__(self, run: RunTool = run_tool) -> None:
        super().__init__({COMMANDS["pmset -g therm"]: parse_therm}, run)


def _psutil_battery() -> Any:
    # psutil has this function only on systems that it supports.
    return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None


def parse_batt(text: str) -> list[Reading]:
    """Read `pmset -g batt`: where the power comes from; a Mac without a battery has no charge."""
    power = parse_power(text)
    if power is None:
        return []
    return [_state("on_battery", power.on_battery), *figure("battery_charge", Unit.PERCENT, power.percent)]


def parse_settings(text: str) -> list[Reading]:
    """Read `pmset -g`: the settings in force."""
    low_power = parse_low_power(text)
    return [] if low_power is None else [_state("low_power_mode", low_power)]


def parse_therm(text: str) -> list[Reading]:
    heat = parse_heat(text) or Heat()
    warned = [] if heat.warning_level is None else [_state("thermal_warning", heat.warning_level > 0)]
    return [*warned, *figure("cpu_speed_limit", Unit.PERCENT, heat.speed_limit_percent)]


def _state(name: str, on: bool, source: str | None = None) -> Reading:
    return Reading(name=name, unit=Unit.RATIO, value=float(on), source=source)
