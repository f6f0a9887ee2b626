"""What a sensor is: something that can be asked for readings a few times a second."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from metalmark.record import Absent


class Unit(StrEnum):
    PERCENT = "%"
    BYTES = "bytes"
    WATTS = "W"
    CELSIUS = "°C"
    MEGAHERTZ = "MHz"


class Reading(Struct, frozen=True, kw_only=True):
    """One value of one series, taken now. Absent ends that series and leaves the sensor's others."""

    name: str
    unit: Unit
    value: float | Absent


class Sensor(Protocol):
    """All calls come from one thread, the sensor's own; one that hangs or raises costs only its own series."""

    name: str
    source: str

    def available(self) -> str | None:
        """None when it can be read here, else the reason. Opens what `read` needs."""

    def read(self) -> list[Reading]:
        """What is known now; a quantity that needs two readings is missing from the first."""
        ...

    def close(self) -> None:
        """May be called twice, and before `available`."""
