"""The sensors a run is watched by on this system: each says itself why it is not there. Other systems' are left out."""

from __future__ import annotations

import sys

from metalmark.telemetry.apple import AppleSensor
from metalmark.telemetry.base import Sensor
from metalmark.telemetry.battery import BatterySensor, MacBatterySensor
from metalmark.telemetry.clock import ClockSensor
from metalmark.telemetry.nvidia import NvidiaSensor
from metalmark.telemetry.paging import PagingSensor
from metalmark.telemetry.process import ProcessSensor
from metalmark.telemetry.rapl import RaplSensor
from metalmark.telemetry.system import SystemSensor
from metalmark.telemetry.thermal import ThermalSensor


def default_sensors(pid: int, platform: str = sys.platform) -> list[Sensor]:
    everywhere: list[Sensor] = [ProcessSensor(pid), SystemSensor()]
    if platform == "darwin":
        return [*everywhere, MacBatterySensor(), AppleSensor(), ThermalSensor(), PagingSensor()]
    return [*everywhere, BatterySensor(), NvidiaSensor(), RaplSensor(), ClockSensor()]
