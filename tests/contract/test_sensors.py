"""One suite for every Sensor: what the sampler relies on."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metalmark.record import Absent
from metalmark.telemetry.base import Reading, Sensor, Unit
from metalmark.telemetry.fake import FakeSensor
from metalmark.telemetry.nvidia import NvidiaSensor
from metalmark.telemetry.process import ProcessSensor
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors
from metalmark.telemetry.system import SystemSensor

PATIENCE_S = 60.0

SCRIPT = [[Reading(name="fake_power", unit=Unit.WATTS, value=float(value))] for value in range(1000)]
SENSORS: dict[str, Callable[[int], Sensor]] = {
    "fake": lambda _: FakeSensor(SCRIPT),
    "process": ProcessSensor,
    "system": lambda _: SystemSensor(),
    "nvidia": lambda _: NvidiaSensor(),
}


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A real process to watch; it ends when its input does."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(params=SENSORS)
def sensor(request: pytest.FixtureRequest, worker: subprocess.Popen[bytes]) -> Iterator[Sensor]:
    sensor = SENSORS[request.param](worker.pid)
    reason = sensor.available()
    if reason is not None:
        pytest.skip(reason)
    yield sensor
    sensor.close()


def check(readings: Any) -> None:
    assert isinstance(readings, list)
    names = [reading.name for reading in readings]
    assert len(set(names)) == len(names)
    for reading in readings:
        assert isinstance(reading, Reading)
        assert reading.name.isidentifier()
        assert isinstance(reading.unit, Unit)
        if isinstance(reading.value, Absent):
            assert reading.value.reason
        else:
            assert math.isfinite(reading.value)
            assert reading.value >= 0


def test_readings_are_finite_and_carry_known_units(sensor: Sensor) -> None:
    first = sensor.read()
    assert first
    check(first)
    for _ in range(3):
        time.sleep(0.02)
        check(sensor.read())


def test_a_series_keeps_its_unit(sensor: Sensor) -> None:
    units: dict[str, Unit] = {}
    for _ in range(3):
        for reading in sensor.read():
            assert units.setdefault(reading.name, reading.unit) == reading.unit


def test_the_end_of_the_process_is_survived(sensor: Sensor, worker: subprocess.Popen[bytes]) -> None:
    check(sensor.read())
    worker.kill()
    check(sensor.read())
    worker.wait()
    for _ in range(3):
        check(sensor.read())


def test_close_may_come_twice(sensor: Sensor) -> None:
    sensor.close()
    sensor.close()


@pytest.mark.parametrize("name", SENSORS)
def test_close_may_come_first(name: str, worker: subprocess.Popen[bytes]) -> None:
    SENSORS[name](worker.pid).close()


@pytest.mark.parametrize("name", SENSORS)
def test_it_says_what_it_is_and_why_it_is_not_there(name: str, worker: subprocess.Popen[bytes]) -> None:
    sensor = SENSORS[name](worker.pid)
    assert sensor.name == name
    assert sensor.source
    assert sensor.available() is None or len(str(sensor.available())) > 10
    sensor.close()


def test_the_defaults_are_all_under_contract(worker: subprocess.Popen[bytes]) -> None:
    assert {sensor.name for sensor in default_sensors(worker.pid)} <= set(SENSORS)


def test_the_defaults_together_under_the_sampler(worker: subprocess.Popen[bytes]) -> None:
    sampler = Sampler(default_sensors(worker.pid), 50.0, time.monotonic())
    sampler.start()
    while not {"process_memory", "process_cpu", "system_memory_available", "system_cpu"} <= set(sampler.latest):
        time.sleep(0.01)
    telemetry = sampler.stop(PATIENCE_S)
    assert all(len(series.at_s) == len(series.values) > 0 for series in telemetry.series)
    assert set(telemetry.absent) <= {"nvidia", "system_swap_used", "system_swap_in", "system_swap_out"}
