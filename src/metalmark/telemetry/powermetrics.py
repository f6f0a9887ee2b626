"""PowermetricsSensor: an Apple chip's power, energy, load and clocks, or the power of an Intel Mac's package, from the
system's own tool. Needs root."""

from __future__ import annotations

import os
import plistlib
import re
from collections.abc import Sequence
from typing import Any

from metalmark.telemetry.base import MODELLED, Reading, Unit, number
from metalmark.telemetry.tool import ToolSensor

_TOOL = "powermetrics"
_PARTS = {"cpu": "cpu", "gpu": "gpu0", "ane": "ane", "dram": "ram"}
_CLUSTER = re.compile(r"([A-Za-z]{1,8}\d{0,4})[-_ ]?Cluster", re.IGNORECASE)
_MOST_MEGAHERTZ = 1e5


class PowermetricsSensor(ToolSensor):
    name = _TOOL
    source = _TOOL + MODELLED

    def __init__(
        self,
        command: Sequence[str] = ("/usr/bin/powermetrics",),
        *,
        interval_ms: int = 1000,
        silence_s: float = 10.0,
        start_s: float = 10.0,
        root: bool | None = None,
    ) -> None:
        samplers = ("-f", "plist", "--samplers", "cpu_power,gpu_power,thermal", "-i", str(interval_ms))
        # Each sample but the first begins with a NUL byte, so that only its last tag says that it is whole.
        super().__init__([*command, *samplers], end=b"</plist>", silence_s=silence_s, start_s=start_s)
        self._root = os.geteuid() == 0 if root is None else root

    def available(self) -> str | None:
        return super().available() if self._root else f"{_TOOL} needs root"

    def parse(self, text: str) -> list[Reading]:
        return parse_line(text)


def parse_line(text: str) -> list[Reading]:
    """Read one property list, after a NUL or not; nothing from other text. Joules are those of this sample alone."""
    try:
        sample = plistlib.loads(text.strip("\0 \r\n\t").encode())
    except Exception:  # noqa: BLE001  plistlib fails in many ways on what is no property list
        return []
    if not isinstance(sample, dict):
        return []
    readings = _powers(sample) + _gpu(_section(sample, "gpu")) + _clusters(_section(sample, "processor"))
    pressure = sample.get("thermal_pressure")
    if isinstance(pressure, str):
        raised = float(pressure.strip().casefold() != "nominal")
        readings.append(Reading(name="thermal_pressure", unit=Unit.RATIO, value=raised, source=_TOOL))
    return readings


def _powers(sample: dict[str, Any]) -> list[Reading]:
    """Read milliwatts and millijoules. Without the CPU's sampler, the GPU's own section has its energy and no power."""
    processor, gpu = _section(sample, "processor"), _section(sample, "gpu")
    elapsed_s = (number(sample.get("elapsed_ns")) or 0.0) / 1e9
    readings: list[Reading] = []
    for part, series in _PARTS.items():
        energy_mj = number(processor.get(f"{part}_energy", gpu.get(f"{part}_energy")))
        power_mw = number(processor.get(f"{part}_power"))
        if power_mw is None and energy_mj is not None and elapsed_s > 0:
            power_mw = energy_mj / elapsed_s
        if power_mw is not None:
            readings.append(Reading(name=f"{series}_power", unit=Unit.WATTS, value=power_mw / 1000))
        if energy_mj is not None:
            readings.append(Reading(name=f"{series}_energy", unit=Unit.JOULES, value=energy_mj / 1000))
    combined_mw, package_w = number(processor.get("combined_power")), number(processor.get("package_watts"))
    if combined_mw is not None:
        readings.append(Reading(name="soc_power", unit=Unit.WATTS, value=combined_mw / 1000))
    elif package_w is not None:
        # An Intel Mac: cores, built-in graphics and what lies between them, by Intel's energy model, in watts.
        readings.append(Reading(name="soc_power", unit=Unit.WATTS, value=package_w))
    return readings


def _gpu(gpu: dict[str, Any]) -> list[Reading]:
    readings: list[Reading] = []
    clock, idle = number(gpu.get("freq_hz")), number(gpu.get("idle_ratio"))
    if clock is not None:
        # Named for hertz, but megahertz on every macOS seen so far.
        value = clock / 1e6 if clock > _MOST_MEGAHERTZ else clock
        readings.append(Reading(name="gpu0_clock", unit=Unit.MEGAHERTZ, value=value, source=_TOOL))
    if idle is not None and idle <= 1:
        readings.append(Reading(name="gpu0_utilisation", unit=Unit.PERCENT, value=100 * (1 - idle), source=_TOOL))
    return readings


def _clusters(processor: dict[str, Any]) -> list[Reading]:
    """Read the clocks of E-Cluster, P0-Cluster, M0-Cluster ...: whatever letter and number the chip has."""
    clusters = processor.get("clusters")
    readings: dict[str, Reading] = {}
    for cluster in clusters if isinstance(clusters, list) else ():
        match = _CLUSTER.fullmatch(str(cluster.get("name"))) if isinstance(cluster, dict) else None
        clock = number(cluster.get("freq_hz")) if match else None
        if match and clock is not None:
            name = f"cpu_{match[1].lower()}_clock"
            readings[name] = Reading(name=name, unit=Unit.MEGAHERTZ, value=clock / 1e6, source=_TOOL)
    return list(readings.values())


def _section(sample: dict[str, Any], key: str) -> dict[str, Any]:
    section = sample.get(key)
    return section if isinstance(section, dict) else {}
