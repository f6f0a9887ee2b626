"""The machine between cells: the power it draws when idle, and the pause (`--cooldown`) until it is cool again."""

import os
import time
from collections.abc import Callable

from metalmark.model.plan import Cooldown
from metalmark.model.run import Series
from metalmark.telemetry.base import Sensor
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors

FIRST_READING_S = 3.0
"""A tool that prints a line per second needs a moment to start. Where every sensor has said that it reads no power,
nobody waits."""
IDLE_HZ = 10.0
IDLE_S = 1.0
IDLE_POLL_S = 0.02
POWER_ENDINGS = ("_power", "_energy")
POLL_S = 1.0
NEAR_CELSIUS = 3.0
FIXED_S = 30.0
"""How long `auto` waits where no sensor reads a temperature."""
NO_SENSOR = "no temperature sensor answers here"

Say = Callable[[str], None]


def idle_watts(
    sensors: Callable[[], list[Sensor]] | None = None,
    *,
    first_reading_s: float = FIRST_READING_S,
    idle_s: float = IDLE_S,
) -> dict[str, float]:
    """Return the mean watts of each part ("gpu0", "cpu" ...) while no worker runs; empty where no sensor tells."""
    began_s = time.monotonic()
    sampler = Sampler(sensors() if sensors else default_sensors(os.getpid()), IDLE_HZ, began_s)
    sampler.start()
    try:
        while not any(name.endswith(POWER_ENDINGS) for name in sampler.latest):
            if sampler.known or time.monotonic() - began_s > first_reading_s:
                return {}
            time.sleep(IDLE_POLL_S)
        time.sleep(idle_s)
    finally:
        series = sampler.stop(1.0).series
    found = {one.name.removesuffix("_energy"): _from_joules(one) for one in series if one.name.endswith("_energy")}
    read = [one for one in series if one.name.endswith("_power") and one.values]
    found |= {one.name.removesuffix("_power"): sum(one.values) / len(one.values) for one in read}
    return {part: watts for part, watts in found.items() if watts is not None}


def _from_joules(series: Series) -> float | None:
    if len(series.values) < 2 or series.at_s[-1] <= series.at_s[0]:
        return None
    used = series.values[-1] - series.values[0]
    # A counter that stands still is not counting: no part draws no power at all.
    return used / (series.at_s[-1] - series.at_s[0]) if used > 0 else None


class Cooler:
    """Remembers the temperatures at which it was made. It reads no sensor while a cell is measured."""

    def __init__(self, cooldown: Cooldown, sensors: Callable[[], list[Sensor]] | None = None) -> None:
        self._limit_s, self._auto = cooldown.limit_s, cooldown.auto
        self._sensors = sensors or (lambda: default_sensors(os.getpid()))
        self._first: dict[str, float] | None = None
        sampler = self._sampler()
        try:
            self._first = self._temperatures(sampler)
        finally:
            sampler.stop(POLL_S)

    def wait(self, say: Say) -> str:
        """Pause, and return how, as a note for the run that follows."""
        if not self._first:
            length_s = FIXED_S if self._auto else self._limit_s
            began_s = time.monotonic()
            while (left_s := began_s + length_s - time.monotonic()) > 0:
                say(f"cooling down: {left_s:.0f} s left; {NO_SENSOR}")
                time.sleep(min(POLL_S, left_s))
            return f"a fixed pause of {length_s:g} s before it: {NO_SENSOR}"
        sampler = self._sampler()
        try:
            return self._until_cool(sampler, self._first, say)
        finally:
            sampler.stop(POLL_S)

    def _until_cool(self, sampler: Sampler, first: dict[str, float], say: Say) -> str:
        began_s = time.monotonic()
        now = self._temperatures(sampler)
        while True:
            waited_s = time.monotonic() - began_s
            warm = {name: value for name, value in now.items() if value > first[name] + NEAR_CELSIUS}
            if now and not warm and not _held_down(sampler.latest):
                return f"paused before it until it was within {NEAR_CELSIUS:g} °C of where the sweep began"
            if waited_s >= self._limit_s:
                return f"still not cool when the {self._limit_s:g} s of pause before it were over"
            state = ", ".join(f"{name} {value:.0f} °C (at first {first[name]:.0f})" for name, value in warm.items())
            say(f"cooling down: {state or 'clocks are held down'}, {waited_s:.0f} of at most {self._limit_s:g} s")
            time.sleep(min(POLL_S, self._limit_s - waited_s))
            now = self._known(sampler)

    def _sampler(self) -> Sampler:
        sampler = Sampler(self._sensors(), 1 / POLL_S, time.monotonic())
        sampler.start()
        return sampler

    def _temperatures(self, sampler: Sampler) -> dict[str, float]:
        """Return the first readings, waiting a little for them."""
        deadline_s = time.monotonic() + FIRST_READING_S
        while not (found := self._known(sampler)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 10)
        return found

    def _known(self, sampler: Sampler) -> dict[str, float]:
        """Return the temperatures now, of the sensors that answered when the sweep began."""
        found = {name: value for name, value in sampler.latest.items() if name.endswith("_temperature")}
        return {name: value for name, value in found.items() if self._first is None or name in self._first}


def _held_down(latest: dict[str, float]) -> bool:
    return latest.get("cpu_speed_limit", 100.0) < 100 or any(
        value > 0 for name, value in latest.items() if name.endswith("_throttle")
    )
