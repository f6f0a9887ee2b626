"""What a sensor is: something that can be asked for readings a few times a second."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from metalmark.model.run import Absent


class Unit(StrEnum):
    PERCENT = "%"
    BYTES = "bytes"
    WATTS = "W"
    JOULES = "J"
    CELSIUS = "°C"
    MEGAHERTZ = "MHz"
    RATIO = "of 1"
    """A share, or a state that is 0 or 1."""


MEASURED = ", measured"
MODELLED = ", modelled"
"""How the source of watts and joules ends: read from a meter, or computed from activity, clock and voltage."""


class SensorLostError(Exception):
    """From `read`: the sensor is over. Its message is the reason, as it will stand in the record."""


class Reading(Struct, frozen=True, kw_only=True):
    """One value of one series, taken now. Absent ends that series and leaves the sensor's others."""

    name: str
    unit: Unit
    value: float | Absent
    source: str | None = None
    """Where this one is from, when that is not where the sensor's others are from."""


class Sensor(Protocol):
    """All calls come from one thread, the sensor's own; one that hangs or raises costs only its own series."""

    name: str

    @property
    def source(self) -> str: ...

    def available(self) -> str | None:
        """None when it can be read here, else the reason. Opens what `read` needs."""

    def read(self) -> list[Reading]:
        """What is known now; a quantity that needs two readings is missing from the first."""
        ...

    def close(self) -> None:
        """May be called twice, and before `available`."""


def number(value: object) -> float | None:
    """A tool's figure: finite and not negative, else nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and value >= 0 else None
    except OverflowError:  # an integer beyond any float
        return None
