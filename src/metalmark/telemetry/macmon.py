"""MacmonSensor: an Apple chip's power, load, clocks and heat, from macmon's JSON lines. Needs no root."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from metalmark.machine.apple import clusters, read_sysctl
from metalmark.model.run import Absent
from metalmark.telemetry.base import MEASURED, MODELLED, Reading, Unit, figure, number
from metalmark.telemetry.tool import ToolSensor

_POWERS = {"cpu": "cpu", "gpu": "gpu0", "ane": "ane", "ram": "ram", "all": "soc"}
_MIXED = Absent("macmon gives one clock for the two slower kinds of cores that this chip has")
_SCALED_ONLY = Absent("macmon before 0.8 gives the GPU's load scaled by its clock alone, as gpu0_scaled")


def core_kinds() -> tuple[str, ...]:
    """Return the names of this Mac's kinds of cores, fastest first."""
    return tuple(cluster.partition(" ")[2] for cluster in clusters(read_sysctl()))


def slower_cluster(kinds: Sequence[str]) -> str | Absent:
    """Return the letter of the cores in macmon's `ecpu` slot: all that are not of the fastest kind.

    The letters are those of the chip's own clusters, as powermetrics prints them: `p` is the fastest kind, whatever it
    is called (Performance, on an M5 Super); `e` is Efficiency; `m` is between them, the Performance cores of an M5 Pro
    and Max, which have no Efficiency cores.
    """
    if len(kinds) > 2:
        return _MIXED
    return "m" if len(kinds) == 2 and kinds[1].casefold() == "performance" else "e"


class MacmonSensor(ToolSensor):
    name = "macmon"
    source = "macmon" + MODELLED

    def __init__(
        self,
        command: Sequence[str] = ("macmon",),
        *,
        silence_s: float = 10.0,
        start_s: float = 10.0,
        kinds: Callable[[], Sequence[str]] = core_kinds,
    ) -> None:
        super().__init__([*command, "pipe", "-i", "500"], end=b"\n", silence_s=silence_s, start_s=start_s)
        self._kinds = kinds
        self._slower: str | Absent = "e"

    def available(self) -> str | None:
        reason = super().available()
        if reason is None:
            self._slower = slower_cluster(self._kinds())
        return reason

    def parse(self, text: str) -> list[Reading]:
        return parse_line(text, self._slower)


def parse_line(text: str, slower: str | Absent = "e") -> list[Reading]:
    """Read one line of any version of macmon; nothing from other text. `slower` is the letter of the `ecpu` slot."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(line, dict):
        return []
    readings: list[Reading] = []
    for key, part in _POWERS.items():
        readings += figure(f"{part}_power", Unit.WATTS, line.get(f"{key}_power"))
    # From the power controller, unlike the others; 0 where it has no such meter.
    readings += figure("system_power", Unit.WATTS, line.get("sys_power") or None, "macmon" + MEASURED)
    temperatures = line.get("temp")
    if isinstance(temperatures, dict):
        for key, series in (("cpu_temp_avg", "cpu_temperature"), ("gpu_temp_avg", "gpu0_temperature")):
            # 0 where no sensor of the chip answered.
            readings += figure(series, Unit.CELSIUS, temperatures.get(key) or None, "macmon")
    return [*readings, *_clock(line, "p", "p"), *_clock(line, "e", slower), *_gpu(line)]


def _clock(line: dict[str, Any], slot: str, cluster: str | Absent) -> list[Reading]:
    clock = line.get(f"{slot}cpu_freq_mhz", _pair(line.get(f"{slot}cpu_usage"))[0])
    if isinstance(cluster, Absent):
        return [Reading(name=f"cpu_{slot}_clock", unit=Unit.MEGAHERTZ, value=cluster, source="macmon")]
    return figure(f"cpu_{cluster}_clock", Unit.MEGAHERTZ, clock, "macmon")


def _gpu(line: dict[str, Any]) -> list[Reading]:
    clock, scaled_share = _pair(line.get("gpu_usage"))
    clocks = figure("gpu0_clock", Unit.MEGAHERTZ, line.get("gpu_freq_mhz", clock), "macmon")
    scaled = _share("gpu0_scaled", line.get("gpu_scaled_ratio", scaled_share))
    active = _share("gpu0_utilisation", line.get("gpu_active_ratio"))
    if scaled and not active:
        active = [Reading(name="gpu0_utilisation", unit=Unit.PERCENT, value=_SCALED_ONLY, source="macmon")]
    return [*clocks, *scaled, *active]


def _pair(value: object) -> tuple[object, object]:
    """Split a load as macmon up to 0.7 prints it: [MHz, share of what it could do at its highest clock]."""
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (None, None)


def _share(series: str, value: object) -> list[Reading]:
    share = number(value)
    return [] if share is None else figure(series, Unit.PERCENT, 100 * share, "macmon")
