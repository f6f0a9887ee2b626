"""ThermalSensor: whether macOS holds the machine back for heat, by `pmset -g therm`. Needs no root."""

from __future__ import annotations

import re
from collections.abc import Callable

from metalmark.machine.tools import run_tool
from metalmark.record import Absent
from metalmark.telemetry.answers import ToolAnswers
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.pace import TOOL_EVERY_S

_LIMIT = re.compile(r"\bCPU_Speed_Limit\s*=\s*(\d{1,3})\b")
_WARNING = re.compile(
    r"^\s*(?:thermal|performance)\s+(?:warning\s+)?level\s*[:=]\s*(\d+)", re.IGNORECASE | re.MULTILINE
)
_NO_WARNING = re.compile(r"No (?:thermal|performance) warning level", re.IGNORECASE)


class ThermalSensor:
    """A Mac that was never held back says only that it has nothing to say: that is a warning of 0, and no limit."""

    name = "thermal"
    source = "pmset"

    def __init__(self, run: Callable[..., str | Absent] = run_tool) -> None:
        self._tools = ToolAnswers({("/usr/bin/pmset", "-g", "therm"): parse_therm}, every_s=TOOL_EVERY_S, run=run)

    def available(self) -> str | None:
        return self._tools.available()

    def read(self) -> list[Reading]:
        return self._tools.read()

    def close(self) -> None:
        """Nothing is held open."""


def parse_therm(text: str) -> list[Reading]:
    readings: list[Reading] = []
    levels, limit = [int(level) for level in _WARNING.findall(text)], _LIMIT.search(text)
    if levels or _NO_WARNING.search(text):
        readings.append(Reading(name="thermal_warning", unit=Unit.RATIO, value=float(any(levels))))
    if limit and int(limit[1]) <= 100:
        readings.append(Reading(name="cpu_speed_limit", unit=Unit.PERCENT, value=int(limit[1])))
    return readings
