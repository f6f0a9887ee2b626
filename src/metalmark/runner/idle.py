"""What the machine draws before a sweep begins: a joule count means little without it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from metalmark.model.run import Series
from metalmark.telemetry.base import Sensor
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors

HZ = 10.0
WATCHED_S = 1.0
FIRST_READING_S = 3.0
"""A Mac's tool takes a moment to start. Where every sensor has said that it gives no watts, nobody waits."""
POLL_S = 0.02
ENDINGS = ("_power", "_energy")


def idle_watts(
    sensors: Callable[[], list[Sensor]] | None = None,
    *,
    first_reading_s: float = FIRST_READING_S,
    watched_s: float = WATCHED_S,
) -> dict[str, float]:
    """Part ("gpu0", "cpu" ...) → mean watts while nothing of ours runs; empty where nothing tells."""
    began_s = time.monotonic()
    sampler = Sampler(sensors() if sensors else default_sensors(os.getpid()), HZ, began_s)
    sampler.start()
    try:
        while not any(name.endswith(ENDINGS) for name in sampler.latest):
            if sampler.known or time.monotonic() - began_s > first_reading_s:
                return {}
            time.sleep(POLL_S)
        time.sleep(watched_s)
    finally:
        series = sampler.stop(1.0).series
    found = {one.name.removesuffix("_energy"): _from_joules(one) for one in series if one.name.endswith("_energy")}
    found |= {one.name.removesuffix("_power"): _mean(one) for one in series if one.name.endswith("_power")}
    return {part: watts for part, watts in found.items() if watts is not None}


def _mean(series: Series) -> float | None:
    return sum(series.values) / len(series.values) if series.values else None


def _from_joules(series: Series) -> float | None:
    if len(series.values) < 2 or series.at_s[-1] <= series.at_s[0]:
        return None
    used = series.values[-1] - series.values[0]
    # A counter that stands still does not count: nothing draws no power at all.
    return used / (series.at_s[-1] - series.at_s[0]) if used > 0 else None
