"""What a sensor is: something that can be asked for readings several times per second."""

import math
import time
from collections.abc import Callable
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
    """Raised by `read` when the sensor has ended. Its message is the reason, as it will stand in the record."""


class Reading(Struct, frozen=True, kw_only=True):
    """One value of one series, taken now. An Absent value ends that series and leaves the sensor's others."""

    name: str
    unit: Unit
    value: float | Absent
    source: str | None = None
    """Where this value is from, if not from the sensor's own source."""


class Sensor(Protocol):
    """All calls come from one thread, the sensor's own; one that hangs or raises costs only its own series.

    A class that inherits from it may leave out `close`, and `available` where it can always be read.
    """

    name: str

    @property
    def source(self) -> str: ...

    def available(self) -> str | None:
        """Open what `read` needs; return None if the sensor can be read here, else the reason."""
        return None

    def read(self) -> list[Reading]:
        """Return what is known now; a quantity that needs two readings is missing from the first."""
        ...

    def close(self) -> None:
        """Let go of what is open. May be called twice, and before `available`."""
        return


def finite(value: object) -> float | None:
    """Return a finite number as it is, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def number(value: object) -> float | None:
    """Return a tool's figure if it is finite and not negative, else None."""
    known = finite(value)
    return known if known is not None and known >= 0 else None


def figure(name: str, unit: Unit, value: object, source: str | None = None, *, per: float = 1) -> list[Reading]:
    """Return a tool's figure, divided by `per`, as one reading; none where it is not a number from 0 up."""
    known = number(value)
    return [] if known is None else [Reading(name=name, unit=unit, value=known / per, source=source)]


class ReadInterval:
    """Lets a sensor that is costly to read be read less often than the sampler asks."""

    def __init__(self, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now = now
        self._next_s = -float("inf")

    def due(self) -> bool:
        """Return True the first time, and then once per `every_s`."""
        now_s = self._now()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True
