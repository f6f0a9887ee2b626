"""Sampler: asks every sensor at a steady rate while a worker runs, and hands over what they gave."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from metalmark.model.run import Absent, Series, Telemetry
from metalmark.scrub import scrub
from metalmark.telemetry.base import Reading, Sensor, SensorLostError, finite

_REASON_CHARS = 300


class Sampler:
    """Samples each sensor in a thread of its own, which sleeps between its ticks.

    `origin_s` is a reading of time.monotonic(): the moment from which the series count their seconds. Nothing is
    sampled if `hz` is None or 0.
    """

    def __init__(self, sensors: Iterable[Sensor], hz: float | None, origin_s: float) -> None:
        self._hz = hz or None
        self._stopping = threading.Event()
        self._telemetry: Telemetry | None = None
        self._channels = (
            [Channel(sensor, period_s=1 / self._hz, origin_s=origin_s, stopping=self._stopping) for sensor in sensors]
            if self._hz
            else []
        )

    @property
    def latest(self) -> dict[str, float]:
        """The last value of each series, for a live display."""
        return {name: value for channel in self._channels for name, value in channel.latest().items()}

    @property
    def known(self) -> bool:
        """Whether every sensor has answered for the first time."""
        return all(channel.known for channel in self._channels)

    def start(self) -> None:
        for channel in self._channels:
            channel.thread.start()

    def stop(self, timeout_s: float) -> Telemetry:
        """Return everything collected, within `timeout_s` even if a sensor hangs. A second call returns the same."""
        if self._telemetry is None:
            self._stopping.set()
            deadline_s = time.monotonic() + timeout_s
            series: list[Series] = []
            absent: dict[str, str] = {}
            for channel in self._channels:
                if channel.thread.ident is not None:  # it was started
                    channel.thread.join(max(0.0, deadline_s - time.monotonic()))
            for channel in self._channels:
                channel_series, channel_absent = channel.collected()
                series += channel_series
                absent |= channel_absent
            self._telemetry = Telemetry(hz=self._hz, series=tuple(series), absent=absent)
        return self._telemetry


class _Samples(NamedTuple):
    unit: str
    source: str
    at_s: array[float]
    values: array[float]


class Channel:
    """One sensor, its thread, and what it gave until it was stopped or broke.

    The thread is the sensor's own, so that a sensor that hangs does not stop the others.
    """

    def __init__(self, sensor: Sensor, *, period_s: float, origin_s: float, stopping: threading.Event) -> None:
        self._sensor = sensor
        self._period_s = period_s
        self._origin_s = origin_s
        self._stopping = stopping
        self._lock = threading.Lock()  # never held while the sensor is asked
        self._series: dict[str, _Samples] = {}
        self._absent: dict[str, str] = {}
        self._call, self._called_at_s = "available", time.monotonic()
        # A daemon: the interpreter's end must not wait for a sensor that hangs.
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"sensor-{sensor.name}")

    def latest(self) -> dict[str, float]:
        """Return the last value of each series that has not ended."""
        with self._lock:
            if self._sensor.name in self._absent:
                return {}
            return {name: one.values[-1] for name, one in self._series.items() if name not in self._absent}

    @property
    def known(self) -> bool:
        """Whether the sensor has answered: with a first reading, or with the reason why there is none."""
        with self._lock:
            return bool(self._absent or self._series)

    def collected(self) -> tuple[list[Series], dict[str, str]]:
        """Return a copy of what there is now. A sensor that is still busy is named, and what it gave before is kept."""
        with self._lock:
            absent = dict(self._absent)
            if self.thread.is_alive():
                since_s = self._called_at_s - self._origin_s
                absent.setdefault(self._sensor.name, f"gave no answer to {self._call}() asked at {since_s:.1f} s")
            series = [
                Series(name=name, unit=one.unit, source=one.source, at_s=tuple(one.at_s), values=tuple(one.values))
                for name, one in self._series.items()
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
            value = finite(reading.value)
            if value is None:
                fault = f"gave {repr(reading.value)[:60]}, which is not a finite number"
                reason = reading.value.reason if isinstance(reading.value, Absent) else fault
                self._lose(reading.name, self._moment() + reason)
                continue
            with self._lock:
                if reading.name not in self._series:
                    source = str(reading.source or self._sensor.source)
                    self._series[reading.name] = _Samples(str(reading.unit), source, array("d"), array("d"))
                self._series[reading.name].at_s.append(at_s)
                self._series[reading.name].values.append(value)

    def _about_to(self, call: str) -> None:
        with self._lock:
            self._call, self._called_at_s = call, time.monotonic()

    def _lose(self, name: str, reason: str) -> None:
        with self._lock:
            # The first reason is the cause; what follows is its consequence.
            self._absent.setdefault(name, scrub(reason)[:_REASON_CHARS])

    def _moment(self) -> str:
        return f"ended at {time.monotonic() - self._origin_s:.1f} s: " if self._series else ""


def next_tick(tick: int, elapsed_s: float, period_s: float) -> int:
    """Return the first tick that is still ahead: a late reading skips what it missed instead of catching up."""
    return max(tick + 1, math.ceil(elapsed_s / period_s))
