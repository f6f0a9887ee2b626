"""The sensors that watch a run on this system. Each says itself why it can't be read here."""

import sys
from collections.abc import Sequence

from metalmark.model.plan import Plan
from metalmark.telemetry.base import Reading, Sensor
from metalmark.telemetry.battery import BatterySensor, MacBatterySensor, ThermalSensor
from metalmark.telemetry.cpu import ClockSensor, RaplSensor
from metalmark.telemetry.macmon import MacmonSensor
from metalmark.telemetry.nvidia import NvidiaSensor
from metalmark.telemetry.powermetrics import PowermetricsSensor
from metalmark.telemetry.process import ProcessSensor
from metalmark.telemetry.software import SoftwareSensor, visible_faults
from metalmark.telemetry.system import PagingSensor, SystemSensor
from metalmark.telemetry.zeus import ZeusSensor


def default_sensors(pid: int, platform: str = sys.platform) -> list[Sensor]:
    """Return the sensors for a worker; those of other systems are left out."""
    everywhere: list[Sensor] = [ProcessSensor(pid), SystemSensor()]
    if platform == "darwin":
        return [*everywhere, MacBatterySensor(), AppleSensor(), ThermalSensor(), PagingSensor()]
    return [*everywhere, BatterySensor(), NvidiaSensor(), RaplSensor(), ClockSensor()]


def sensors_of(plan: Plan, pid: int) -> list[Sensor]:
    """Return the sensors that watch a plan's worker: this system's, unless the software device is to show a fault."""
    faults = visible_faults(plan)
    return [ProcessSensor(pid), SoftwareSensor(faults)] if faults else default_sensors(pid)


class AppleSensor:
    """An Apple chip through the first of its tools that answers, so that no watt is counted twice.

    A tool that breaks in the middle of a run is not replaced: a series has one source.
    """

    name = "apple"

    def __init__(self, tools: Sequence[Sensor] | None = None) -> None:
        preferred: tuple[Sensor, ...] = (MacmonSensor(), ZeusSensor(), PowermetricsSensor())
        self._tools = preferred if tools is None else tuple(tools)
        self._chosen: Sensor | None = None

    @property
    def source(self) -> str:
        return self._chosen.source if self._chosen else "macmon, zeus-apple-silicon or powermetrics"

    def available(self) -> str | None:
        reasons: list[str] = []
        for tool in self._tools if self._chosen is None else ():
            try:
                reason = tool.available()
            except Exception as error:  # noqa: BLE001  the next one may do
                reason = f"{tool.name} raised {type(error).__name__}: {error}"
            if reason is None:
                self._chosen = tool
                return None
            tool.close()
            reasons.append(reason)
        return f"{'; '.join(reasons)} (try: brew install macmon)" if self._chosen is None else None

    def read(self) -> list[Reading]:
        return self._chosen.read() if self._chosen else []

    def close(self) -> None:
        for tool in self._tools:
            tool.close()
