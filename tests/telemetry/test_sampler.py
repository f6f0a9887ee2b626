"""The sampler against sensors that raise, hang and talk nonsense. Nothing here depends on how long a thing takes:
tests wait for events, and the limits are only there so that a failure ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.model.run import Absent, Telemetry
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.sampler import Sampler, next_tick
from tests.telemetry.fakes import HANG, FakeSensor

HZ = 200.0
PATIENCE_S = 60.0


def watts(value: Any, name: str = "power") -> list[Reading]:
    return [Reading(name=name, unit=Unit.WATTS, value=value)]


def run(*sensors: FakeSensor) -> Telemetry:
    """Sample until each script is over or its sensor was given up."""
    sampler = Sampler(sensors, HZ, time.monotonic())
    sampler.start()
    for sensor in sensors:
        while not (sensor.spent.wait(0.01) or sensor.closed.is_set()):
            pass
    return sampler.stop(PATIENCE_S)


def values(telemetry: Telemetry, name: str) -> tuple[float, ...]:
    (found,) = [series.values for series in telemetry.series if series.name == name]
    return found


@pytest.fixture
def hung() -> Iterator[FakeSensor]:
    sensor = FakeSensor([watts(1.0), watts(2.0), HANG], name="hung")
    yield sensor
    sensor.release.set()


def test_keeps_every_reading_in_order() -> None:
    sensor = FakeSensor([watts(1), watts(2.5), [], watts(3)])
    telemetry = run(sensor)
    (series,) = telemetry.series
    assert (series.name, series.unit, series.source) == ("power", "W", "script")
    assert series.values == (1.0, 2.5, 3.0)
    assert list(series.at_s) == sorted(series.at_s)
    assert series.at_s[0] >= 0
    assert telemetry.hz == HZ
    assert telemetry.absent == {}
    assert sensor.closed.is_set()
    assert msgspec.json.decode(msgspec.json.encode(telemetry), type=Telemetry) == telemetry


@pytest.mark.parametrize("hz", [None, 0])
def test_switched_off_starts_nothing(hz: float | None) -> None:
    before = threading.active_count()
    sampler = Sampler([FakeSensor([watts(1)])], hz, time.monotonic())
    sampler.start()
    assert threading.active_count() == before
    assert sampler.latest == {}
    assert sampler.stop(PATIENCE_S) == Telemetry(hz=None)


def test_never_started() -> None:
    assert Sampler([FakeSensor([watts(1)])], HZ, time.monotonic()).stop(PATIENCE_S) == Telemetry(hz=HZ)


def test_an_absent_sensor_leaves_its_reason() -> None:
    sensor = FakeSensor([watts(1)], name="macmon", unavailable="macmon is not installed")
    telemetry = run(sensor)
    assert telemetry.series == ()
    assert telemetry.absent == {"macmon": "macmon is not installed"}


def test_a_sensor_that_raises_keeps_what_it_gave_and_leaves_the_others_alone() -> None:
    broken = FakeSensor([watts(1, "a"), OSError("the tool ended"), watts(9, "a")], name="broken")
    sound = FakeSensor([watts(value, "b") for value in range(5)], name="sound")
    telemetry = run(broken, sound)
    assert values(telemetry, "a") == (1.0,)
    assert values(telemetry, "b") == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert list(telemetry.absent) == ["broken"]
    assert telemetry.absent["broken"].startswith("ended at ")
    assert telemetry.absent["broken"].endswith("read() raised OSError: the tool ended")


def test_even_an_exit_from_a_sensor_is_only_its_own() -> None:
    telemetry = run(FakeSensor([SystemExit(3)], name="quits"), FakeSensor([watts(1)]))
    assert telemetry.absent == {"quits": "read() raised SystemExit: 3"}
    assert values(telemetry, "power") == (1.0,)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, "12 W", None, True, 10**400, Absent("not on this chip")])
def test_nonsense_ends_its_series_and_leaves_the_sensor_s_others(nonsense: Any) -> None:
    telemetry = run(FakeSensor([watts(1) + watts(5, "b"), watts(nonsense) + watts(6, "b"), watts(2) + watts(7, "b")]))
    assert values(telemetry, "power") == (1.0,)
    assert values(telemetry, "b") == (5.0, 6.0, 7.0)
    assert list(telemetry.absent) == ["power"]


def test_a_series_absent_from_the_start_gives_its_own_reason() -> None:
    telemetry = run(FakeSensor([watts(Absent("not on this chip"))]))
    assert telemetry == Telemetry(hz=HZ, absent={"power": "not on this chip"})


@pytest.mark.parametrize("nonsense", ["a text", {"power": 1.0}, 7, [1.0], [Reading(name=[], unit=Unit.WATTS, value=1)]])
def test_an_answer_that_is_no_list_of_readings_ends_the_sensor(nonsense: Any) -> None:
    telemetry = run(FakeSensor([watts(1), nonsense, watts(2)], name="odd"), FakeSensor([watts(4, "b")]))
    assert values(telemetry, "power") == (1.0,)
    assert values(telemetry, "b") == (4.0,)
    assert "read() gave " in telemetry.absent["odd"]


def test_a_hung_sensor_is_named_and_loses_nothing_and_stops_nobody(hung: FakeSensor) -> None:
    sound = FakeSensor((watts(value, "b") for value in range(10**6)), name="sound")
    sampler = Sampler([hung, sound], HZ, time.monotonic())
    sampler.start()
    assert hung.hanging.wait(PATIENCE_S)
    seen = sampler.latest["b"]
    while sampler.latest["b"] < seen + 5:  # the other goes on while this one hangs
        time.sleep(0.01)
    telemetry = sampler.stop(0.2)
    assert values(telemetry, "power") == (1.0, 2.0)
    assert values(telemetry, "b")[-1] >= seen + 5
    assert telemetry.absent["hung"].startswith("gave no answer to read() asked at ")
    assert sound.closed.is_set()
    assert not hung.closed.is_set()


def test_stop_gives_the_same_twice_even_when_the_hung_one_wakes(hung: FakeSensor) -> None:
    sampler = Sampler([hung], HZ, time.monotonic())
    sampler.start()
    assert hung.hanging.wait(PATIENCE_S)
    telemetry = sampler.stop(0.0)
    hung.release.set()
    assert hung.closed.wait(PATIENCE_S)
    assert sampler.stop(PATIENCE_S) is telemetry


class HangsAround(FakeSensor):
    """Hangs in `available` or in `close`."""

    def __init__(self, where: str) -> None:
        super().__init__([watts(1)], name=where)
        self.where = where

    def available(self) -> str | None:
        return self._hang("available")

    def close(self) -> None:
        self._hang("close")

    def _hang(self, where: str) -> None:
        if self.where == where:
            self.hanging.set()
            self.release.wait()


@pytest.mark.parametrize("where", ["available", "close"])
def test_a_hang_before_or_after_reading_is_survived(where: str) -> None:
    sensor = HangsAround(where)
    sampler = Sampler([sensor], HZ, time.monotonic())
    sampler.start()
    assert (sensor.spent if where == "close" else sensor.hanging).wait(PATIENCE_S)
    telemetry = sampler.stop(0.2)
    sensor.release.set()
    assert f"gave no answer to {where}()" in telemetry.absent[where]
    assert len(telemetry.series) == (where == "close")


class RaisesAtTheEnds(FakeSensor):
    def available(self) -> str | None:
        raise RuntimeError("no")

    def close(self) -> None:
        self.closed.set()
        raise RuntimeError("neither")


def test_raising_at_either_end_leaves_the_first_reason() -> None:
    telemetry = run(RaisesAtTheEnds([], name="ends"))
    assert telemetry.absent == {"ends": "available() raised RuntimeError: no"}


def test_reasons_hold_no_paths() -> None:
    telemetry = run(FakeSensor([OSError("no such file: /home/someone/bin/macmon")], name="x"))
    assert telemetry.absent["x"] == "read() raised OSError: no such file: macmon"


def test_latest_shows_living_series_only() -> None:
    sensor = FakeSensor([watts(1) + watts(8, "dead"), watts(2) + watts(math.nan, "dead")])
    sampler = Sampler([sensor], HZ, time.monotonic())
    sampler.start()
    assert sensor.spent.wait(PATIENCE_S)
    assert sampler.latest == {"power": 2.0}
    sampler.stop(PATIENCE_S)


@given(
    tick=st.integers(0, 10**6),
    late_s=st.floats(0, 100, allow_nan=False),
    period_s=st.sampled_from([0.01, 0.1, 0.2, 1.0]),
)
def test_ticks_move_on_and_missed_ones_are_skipped(tick: int, late_s: float, period_s: float) -> None:
    elapsed_s = tick * period_s + late_s
    following = next_tick(tick, elapsed_s, period_s)
    assert following > tick
    assert following * period_s >= elapsed_s - 1e-6
    assert following == tick + 1 or (following - 1) * period_s <= elapsed_s + 1e-6
