"""MacmonSensor: an Apple chip's power, load, clocks and heat, from macmon's JSON lines. Needs no root."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from metalmark.record import Absent
from metalmark.telemetry.base import MEASURED, MODELLED, Reading, Unit, number
from metalmark.telemetry.tool import ToolSensor

_POWERS = {
    "cpu_power": "cpu_power",
    "gpu_power": "gpu0_power",
    "ane_power": "ane_power",
    "ram_power": "ram_power",
    "all_power": "soc_power",
}
_SCALED_ONLY = Absent("macmon before 0.8 gives the GPU's load scaled by its clock alone, as gpu0_scaled")


class MacmonSensor(ToolSensor):
    name = "macmon"
    source = "macmon" + MODELLED

    def __init__(
        self,
        command: Sequence[str] = ("macmon",),
        *,
        interval_ms: int = 500,
        silence_s: float = 10.0,
        start_s: float = 10.0,
    ) -> None:
        argv = [*command, "pipe", "-i", str(interval_ms)]
        super().__init__(argv, end=b"\n", silence_s=silence_s, start_s=start_s)

    @staticmethod
    def parse(text: str) -> list[Reading]:
        return parse_line(text)


def parse_line(text: str) -> list[Reading]:
    """One line of any version; nothing for what is none of macmon's."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(line, dict):
        return []
    readings = [_reading(series, Unit.WATTS, line.get(key)) for key, series in _POWERS.items()]
    # From the power controller, unlike the others; 0 where it has no such meter.
    readings.append(_reading("system_power", Unit.WATTS, line.get("sys_power") or None, "macmon" + MEASURED))
    temperatures = line.get("temp")
    if isinstance(temperatures, dict):
        for key, series in (("cpu_temp_avg", "cpu_temperature"), ("gpu_temp_avg", "gpu0_temperature")):
            # 0 where no sensor of the chip answered.
            readings.append(_reading(series, Unit.CELSIUS, temperatures.get(key) or None, "macmon"))
    for cluster in ("e", "p"):
        clock = line.get(f"{cluster}cpu_freq_mhz", _pair(line.get(f"{cluster}cpu_usage"))[0])
        readings.append(_reading(f"cpu_{cluster}_clock", Unit.MEGAHERTZ, clock, "macmon"))
    readings += _gpu(line)
    return [reading for reading in readings if reading is not None]


def _gpu(line: dict[str, Any]) -> list[Reading | None]:
    clock, scaled = _pair(line.get("gpu_usage"))
    readings = [
        _reading("gpu0_clock", Unit.MEGAHERTZ, line.get("gpu_freq_mhz", clock), "macmon"),
        _share("gpu0_scaled", line.get("gpu_scaled_ratio", scaled)),
        _share("gpu0_utilisation", line.get("gpu_active_ratio")),
    ]
    if readings[-1] is None and readings[-2] is not None:
        readings[-1] = Reading(name="gpu0_utilisation", unit=Unit.PERCENT, value=_SCALED_ONLY, source="macmon")
    return readings


def _pair(value: object) -> tuple[object, object]:
    """Up to 0.7 a load is [MHz, share of what it could do at its highest clock]."""
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (None, None)


def _share(series: str, value: object) -> Reading | None:
    share = number(value)
    return None if share is None else _reading(series, Unit.PERCENT, 100 * share, "macmon")


def _reading(series: str, unit: Unit, value: object, source: str | None = None) -> Reading | None:
    figure = number(value)
    return None if figure is None else Reading(name=series, unit=unit, value=figure, source=source)
