"""ClockSensor: how fast the CPU runs, as Linux's cpufreq tells."""

from __future__ import annotations

from pathlib import Path

from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.pace import Pace

_CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
_EVERY_S = 1.0


class ClockSensor:
    """`cpu_clock` is that of the fastest core: the mean over many cores says more about the idle ones.

    /proc/cpuinfo is no substitute: in a virtual machine it has the nominal clock, whatever the real one is.
    """

    name = "clock"
    source = "cpufreq"

    def __init__(self, cpufreq: Path = _CPUFREQ) -> None:
        self._cpufreq = cpufreq
        self._files: list[Path] = []
        # A reading may wake each core to ask it.
        self._pace = Pace(_EVERY_S)

    def available(self) -> str | None:
        self._files = sorted(self._cpufreq.glob("policy*/scaling_cur_freq"))
        if not self._files:
            return "the system shows no clocks of its CPU (usual in a virtual machine)"
        return None

    def read(self) -> list[Reading]:
        if not self._files or not self._pace.due():
            return []
        fastest_khz = max(int(path.read_text()) for path in self._files)
        return [Reading(name="cpu_clock", unit=Unit.MEGAHERTZ, value=fastest_khz / 1000)]

    def close(self) -> None:
        self._files = []
