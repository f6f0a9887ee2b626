"""Sampler: asks every sensor at a steady pace while a worker runs, and hands over what they gave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from metalmark.model.run import Series, Telemetry
from metalmark.telemetry.base import Sensor
from metalmark.telemetry.channel import Channel


class Sampler:
    """`origin_s` is a reading of time.monotonic(): the moment from which the series count their seconds.

    One thread a sensor, asleep between its ticks. `hz` of None or 0: nothing is sampled.
    """

    def __init__(self, sensors: Iterable[Sensor], hz: float | None, origin_s: float) -> None:
        self._hz = hz or None
        self._stopping = threading.Event()
        self._telemetry: Telemetry | None = None
        self._started = False
        self._channels = (
            [Channel(sensor, period_s=1 / self._hz, origin_s=origin_s, stopping=self._stopping) for sensor in sensors]
            if self._hz
            else []
        )

    @property
    def latest(self) -> dict[str, float]:
        """Series → its last value, for a live display."""
        return {name: value for channel in self._channels for name, value in channel.latest().items()}

    @property
    def known(self) -> bool:
        """Whether every sensor has answered for the first time."""
        return all(channel.known for channel in self._channels)

    def start(self) -> None:
        self._started = True
        for channel in self._channels:
            channel.start()

    def stop(self, timeout_s: float) -> Telemetry:
        """Everything collected, within `timeout_s` even when a sensor hangs for ever. A second call gives the same."""
        if self._telemetry is None:
            self._stopping.set()
            deadline_s = time.monotonic() + timeout_s
            series: list[Series] = []
            absent: dict[str, str] = {}
            for channel in self._channels if self._started else ():
                channel.join(max(0.0, deadline_s - time.monotonic()))
            for channel in self._channels:
                channel_series, channel_absent = channel.collected()
                series += channel_series
                absent |= channel_absent
            self._telemetry = Telemetry(hz=self._hz, series=tuple(series), absent=absent)
        return self._telemetry
