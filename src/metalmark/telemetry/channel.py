"""Channel: one sensor, the thread that asks it, and what it gave until it was stopped or broke."""

from __future__ import annotations

import math
import threading
import time
from array import array

from metalmark.model.run import Absent, Series
from metalmark.scrub import scrub
from metalmark.telemetry.base import Reading, Sensor, SensorLostError

_REASON_CHARS = 300


class Channel:
    """The thread is the sensor's own, so that one that hangs stops nobody else."""

    def __init__(self, sensor: Sensor, *, period_s: float, origin_s: float, stopping: threading.Event) -> None:
        self._sensor = sensor
        self._period_s = period_s
        self._origin_s = origin_s
        self._stopping = stopping
        self._lock = threading.Lock()  # never held while the sensor is asked
        self._units: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._at_s: dict[str, array[float]] = {}
        self._values: dict[str, array[float]] = {}
        self._absent: dict[str, str] = {}
        self._call, self._called_at_s = "available", time.monotonic()
        # A daemon: the interpreter's end must not wait for a sensor that hangs.
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"sensor-{sensor.name}")

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def latest(self) -> dict[str, float]:
        """The last value of each series that is still alive."""
        with self._lock:
            if self._sensor.name in self._absent:
                return {}
            return {name: values[-1] for name, values in self._values.items() if name not in self._absent}

    @property
    def known(self) -> bool:
        """Whether it has answered: by a first reading, or by why there is none."""
        with self._lock:
            return bool(self._absent or self._values)

    def collected(self) -> tuple[list[Series], dict[str, str]]:
        """A copy of what there is now; a sensor that is still busy is named, and what it gave before is kept."""
        with self._lock:
            absent = dict(self._absent)
            if self._thread.is_alive():
                since_s = self._called_at_s - self._origin_s
                absent.setdefault(self._sensor.name, f"gave no answer to {self._call}() asked at {since_s:.1f} s")
            series = [
                Series(
                    name=name,
                    unit=unit,
                    source=self._sources[name],
                    at_s=tuple(self._at_s[name]),
                    values=tuple(self._values[name]),
                )
                for name, unit in self._units.items()
            ]
        return series, absent

    def _run(self) -> None:
        try:
            self._about_to("available")
            reason = self._sensor.available()
            if reason is None:
                self._sample()
            else:
                self._lose(self._sensor.name, reason)
        except SensorLostError as error:
            self._lose(self._sensor.name, f"{self._moment()}{error}")
        except BaseException as error:  # noqa: BLE001  whatever a sensor throws costs only its own series
            self._lose(self._sensor.name, f"{self._moment()}{self._call}() raised {type(error).__name__}: {error}")
        try:
            self._about_to("close")
            self._sensor.close()
        except BaseException as error:  # noqa: BLE001  as above
            self._lose(self._sensor.name, f"close() raised {type(error).__name__}: {error}")

    def _sample(self) -> None:
        start_s, tick = time.monotonic(), 0
        while not self._stopping.wait(max(0.0, start_s + tick * self._period_s - time.monotonic())):
            self._about_to("read")
            self._take(self._sensor.read())
            tick = next_tick(tick, time.monotonic() - start_s, self._period_s)

    def _take(self, readings: object) -> None:
        at_s = round(time.monotonic() - self._origin_s, 4)
        if not isinstance(readings, list):
            raise SensorLostError(f"read() gave {type(readings).__name__}, not a list of readings")
        for reading in readings:
            if not isinstance(reading, Reading) or not isinstance(reading.name, str):
                raise SensorLostError(f"read() gave a {type(reading).__name__} among its readings")
            if reading.name in self._absent:
                continue
            value = _finite(reading.value)
            if value is None:
                self._lose(reading.name, self._moment() + _fault(reading.value))
                continue
            with self._lock:
                if reading.name not in self._units:
                    self._units[reading.name] = str(reading.unit)
                    self._sources[reading.name] = str(reading.source or self._sensor.source)
                    self._at_s[reading.name], self._values[reading.name] = array("d"), array("d")
                self._at_s[reading.name].append(at_s)
                self._values[reading.name].append(value)

    def _about_to(self, call: str) -> None:
        with self._lock:
            self._call, self._called_at_s = call, time.monotonic()

    def _lose(self, name: str, reason: str) -> None:
        with self._lock:
            # The first reason is the cause; what follows is its consequence.
            self._absent.setdefault(name, scrub(reason)[:_REASON_CHARS])

    def _moment(self) -> str:
        return f"ended at {time.monotonic() - self._origin_s:.1f} s: " if self._values else ""


def next_tick(tick: int, elapsed_s: float, period_s: float) -> int:
    """The first tick that is not over yet: a late reading skips what it missed instead of catching up."""
    return max(tick + 1, math.ceil(elapsed_s / period_s))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def _fault(value: object) -> str:
    return value.reason if isinstance(value, Absent) else f"gave {repr(value)[:60]}, which is no finite number"
