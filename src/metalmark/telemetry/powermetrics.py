"""PowermetricsSensor: an Apple chip's power, energy, load and clocks, or the power of an Intel Mac's package, from the
system's own tool. Needs root."""

import os
import plistlib
import re
from collections.abc import Sequence
from typing import Any

from metalmark.telemetry.base import MODELLED, Reading, Unit, figure, number
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
        silence_s: float = 10.0,
        start_s: float = 10.0,
        root: bool | None = None,
    ) -> None:
        samplers = ("-f", "plist", "--samplers", "cpu_power,gpu_power,thermal", "-i", "1000")
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
        readings += figure(f"{series}_power", Unit.WATTS, power_mw, per=1000)
        readings += figure(f"{series}_energy", Unit.JOULES, energy_mj, per=1000)
    combined = figure("soc_power", Unit.WATTS, processor.get("combined_power"), per=1000)
    # An Intel Mac: cores, built-in graphics and what lies between them, by Intel's energy model, in watts.
    return readings + (combined or figure("soc_power", Unit.WATTS, processor.get("package_watts")))


def _gpu(gpu: dict[str, Any]) -> list[Reading]:
    clock, idle = number(gpu.get("freq_hz")), number(gpu.get("idle_ratio"))
    # Named for hertz, but megahertz on every macOS seen so far.
    per = 1e6 if clock is not None and clock > _MOST_MEGAHERTZ else 1
    busy = 100 * (1 - idle) if idle is not None else None
    clocks = figure("gpu0_clock", Unit.MEGAHERTZ, clock, _TOOL, per=per)
    return clocks + figure("gpu0_utilisation", Unit.PERCENT, busy, _TOOL)


def _clusters(processor: dict[str, Any]) -> list[Reading]:
    """Read the clocks of E-Cluster, P0-Cluster, M0-Cluster ...: whatever letter and number the chip has."""
    clusters = processor.get("clusters")
    readings: dict[str, Reading] = {}
    for cluster in clusters if isinstance(clusters, list) else ():
        match = _CLUSTER.fullmatch(str(cluster.get("name"))) if isinstance(cluster, dict) else None
        name = f"cpu_{match[1].lower()}_clock" if match else ""
        for reading in figure(name, Unit.MEGAHERTZ, cluster.get("freq_hz"), _TOOL, per=1e6) if match else ():
            readings[name] = reading
    return list(readings.values())


def _section(sample: dict[str, Any], key: str) -> dict[str, Any]:
    section = sample.get(key)
    return section if isinstance(section, dict) else {}
