"""ThermalSensor: whether macOS holds the machine back for heat, by `pmset -g therm`. Needs no root."""

from __future__ import annotations

from collections.abc import Callable

from metalmark.machine.apple import HEAT, parse_heat
from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent
from metalmark.telemetry.answers import ToolAnswers
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.pace import TOOL_EVERY_S


class ThermalSensor:
    """A Mac that was never held back says only that it has nothing to say: that is a warning of 0, and no limit."""

    name = "thermal"
    source = "pmset"

    def __init__(self, run: Callable[..., str | Absent] = run_tool) -> None:
        self._tools = ToolAnswers({HEAT: parse_therm}, every_s=TOOL_EVERY_S, run=run)

    def available(self) -> str | None:
        return self._tools.available()

    def read(self) -> list[Reading]:
        return self._tools.read()

    def close(self) -> None:
        """Nothing is held open."""


def parse_therm(text: str) -> list[Reading]:
    heat = parse_heat(text)
    readings: list[Reading] = []
    if heat is not None and heat.warning_level is not None:
        readings.append(Reading(name="thermal_warning", unit=Unit.RATIO, value=float(heat.warning_level > 0)))
    if heat is not None and heat.speed_limit_percent is not None:
        readings.append(Reading(name="cpu_speed_limit", unit=Unit.PERCENT, value=heat.speed_limit_percent))
    return readings
