"""The sensors a run is watched by, those of other hardware included: each says itself why it is not there."""

from __future__ import annotations

from metalmark.telemetry.base import Sensor
from metalmark.telemetry.nvidia import NvidiaSensor
from metalmark.telemetry.process import ProcessSensor
from metalmark.telemetry.system import SystemSensor


def default_sensors(pid: int) -> list[Sensor]:
    return [ProcessSensor(pid), SystemSensor(), NvidiaSensor()]
