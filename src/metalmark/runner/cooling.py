"""`--cooldown`: a pause between cells, until the machine is as cool as when the sweep began or the time is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from metalmark.model.sweep import Cooldown
from metalmark.telemetry.base import Sensor
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors

POLL_S = 1.0
FIRST_READING_S = 3.0
"""A tool that prints a line a second needs some to start."""
NEAR_CELSIUS = 3.0
FIXED_S = 30.0
"""What `auto` waits where nothing tells a temperature."""
NOTHING_TELLS = "no temperature sensor answers here"

Say = Callable[[str], None]


class Cooler:
    """Remembers the temperatures it was made at. Nothing of it runs while a cell is measured."""

    def __init__(self, cooldown: Cooldown, sensors: Callable[[], list[Sensor]] | None = None) -> None:
        self._limit_s, self._auto = cooldown.limit_s, cooldown.auto
        self._sensors = sensors or (lambda: default_sensors(os.getpid()))
        self._first: dict[str, float] | None = None
        sampler = self._watch()
        try:
            self._first = self._temperatures(sampler)
        finally:
            sampler.stop(POLL_S)

    def wait(self, say: Say) -> str:
        """Pauses, and says in the words of a record's note how."""
        if not self._first:
            length_s = FIXED_S if self._auto else self._limit_s
            self._pause(length_s, say)
            return f"a fixed pause of {length_s:g} s before it: {NOTHING_TELLS}"
        sampler = self._watch()
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

    def _pause(self, length_s: float, say: Say) -> None:
        began_s = time.monotonic()
        while (left_s := began_s + length_s - time.monotonic()) > 0:
            say(f"cooling down: {left_s:.0f} s left; {NOTHING_TELLS}")
            time.sleep(min(POLL_S, left_s))

    def _watch(self) -> Sampler:
        sampler = Sampler(self._sensors(), 1 / POLL_S, time.monotonic())
        sampler.start()
        return sampler

    def _temperatures(self, sampler: Sampler) -> dict[str, float]:
        """The first there are, waited for a little."""
        deadline_s = time.monotonic() + FIRST_READING_S
        while not (found := self._known(sampler)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 10)
        return found

    def _known(self, sampler: Sampler) -> dict[str, float]:
        """Those that were there when the sweep began, once they are remembered."""
        found = {name: value for name, value in sampler.latest.items() if name.endswith("_temperature")}
        return {name: value for name, value in found.items() if self._first is None or name in self._first}


def _held_down(latest: dict[str, float]) -> bool:
    return latest.get("cpu_speed_limit", 100.0) < 100 or any(
        value > 0 for name, value in latest.items() if name.endswith("_throttle")
    )
