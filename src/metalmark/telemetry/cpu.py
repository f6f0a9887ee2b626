"""RaplSensor and ClockSensor: the energy and the clock of the CPU, as Linux shows them."""

import re
from pathlib import Path

from msgspec import Struct

from metalmark.telemetry.base import MEASURED, MODELLED, Reading, ReadInterval, Sensor, Unit

_POWERCAP = Path("/sys/class/powercap")
_CPUINFO = Path("/proc/cpuinfo")
_CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
_PACKAGE = re.compile(r"package-\d+")
_EVERY_S = 1.0


class _Counter(Struct):
    series: str
    path: Path
    range_uj: int
    last_uj: int
    used_uj: int = 0


class RaplSensor(Sensor):
    """The CPU packages' own energy counters: `cpu_energy` is the sum over all packages, `ram_energy` the sum over their
    memory where it is counted separately."""

    name = "rapl"
    source = "rapl" + MODELLED

    def __init__(self, powercap: Path = _POWERCAP, cpuinfo: Path = _CPUINFO) -> None:
        self._powercap, self._cpuinfo = powercap, cpuinfo
        self._counters: list[_Counter] = []

    def available(self) -> str | None:
        counters: list[_Counter] = []
        try:
            # Intel has a meter; AMD computes.
            if "GenuineIntel" in self._cpuinfo.read_text(errors="replace"):
                self.source = "rapl" + MEASURED
            # The same packages may be there a second time, as intel-rapl-mmio.
            for folder in sorted(self._powercap.glob("intel-rapl:*")):
                series = _series((folder / "name").read_text().strip())
                if series:
                    path = folder / "energy_uj"
                    range_uj = int((folder / "max_energy_range_uj").read_text())
                    last_uj = int(path.read_text())
                    counters.append(_Counter(series=series, path=path, range_uj=range_uj, last_uj=last_uj))
        except PermissionError:
            return "the system lets only root read the CPU's energy counters"
        except (OSError, ValueError) as error:
            return f"the CPU's energy counters can't be read: {getattr(error, 'strerror', None) or error}"
        self._counters = counters
        return None if counters else "the system shows no energy counters of its CPU (a virtual machine has none)"

    def read(self) -> list[Reading]:
        joules: dict[str, float] = {}
        for counter in self._counters:
            now_uj = int(counter.path.read_text())
            step_uj = now_uj - counter.last_uj
            # The counter starts again from 0 at its range, which some reach within a minute at full load.
            counter.used_uj += step_uj if step_uj >= 0 else step_uj + counter.range_uj
            counter.last_uj = now_uj
            joules[counter.series] = joules.get(counter.series, 0.0) + counter.used_uj / 1e6
        return [Reading(name=series, unit=Unit.JOULES, value=value) for series, value in joules.items()]

    def close(self) -> None:
        self._counters = []


def _series(domain: str) -> str | None:
    """`core` and `uncore` are parts of a package, and `psys` holds it all: counting those would count twice."""
    if _PACKAGE.match(domain):
        return "cpu_energy"
    return "ram_energy" if domain == "dram" else None


class ClockSensor(Sensor):
    """How fast the CPU runs: `cpu_clock` is the clock of the fastest core, since a mean says more about the idle ones.

    /proc/cpuinfo is no substitute: in a virtual machine it has the nominal clock, whatever the real one is.
    """

    name = "clock"
    source = "cpufreq"

    def __init__(self, cpufreq: Path = _CPUFREQ) -> None:
        self._cpufreq = cpufreq
        self._files: list[Path] = []
        # A reading may wake each core to ask it.
        self._interval = ReadInterval(_EVERY_S)

    def available(self) -> str | None:
        self._files = sorted(self._cpufreq.glob("policy*/scaling_cur_freq"))
        return None if self._files else "the system shows no clocks of its CPU (usual in a virtual machine)"

    def read(self) -> list[Reading]:
        if not self._files or not self._interval.due():
            return []
        fastest_khz = max(int(path.read_text()) for path in self._files)
        return [Reading(name="cpu_clock", unit=Unit.MEGAHERTZ, value=fastest_khz / 1000)]

    def close(self) -> None:
        self._files = []
