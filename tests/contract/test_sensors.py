"""One suite for every Sensor: what the sampler relies on."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metalmark.model.run import Absent
from metalmark.telemetry.base import MEASURED, MODELLED, Reading, Sensor, Unit
from metalmark.telemetry.battery import BatterySensor, MacBatterySensor, ThermalSensor
from metalmark.telemetry.cpu import ClockSensor, RaplSensor
from metalmark.telemetry.nvidia import NvidiaSensor
from metalmark.telemetry.process import ProcessSensor
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import AppleSensor, default_sensors
from metalmark.telemetry.system import PagingSensor, SystemSensor
from metalmark.telemetry.zeus import ZeusSensor
from tests.telemetry.fakes import FakeSensor, MacTools, ZeusMonitor, ZeusWindows, macmon, on_metal, powermetrics

PATIENCE_S = 60.0
PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()

SCRIPT = [[Reading(name="fake_power", unit=Unit.WATTS, value=float(value))] for value in range(1000)]


def rapl(folder: Path) -> Sensor:
    domain = folder / "powercap" / "intel-rapl:0"
    domain.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "1000"), ("energy_uj", "10")):
        (domain / name).write_text(text)
    (folder / "cpuinfo").write_text("vendor_id : GenuineIntel")
    return RaplSensor(folder / "powercap", folder / "cpuinfo")


def clock(folder: Path) -> Sensor:
    (folder / "policy0").mkdir()
    (folder / "policy0" / "scaling_cur_freq").write_text("2400000")
    return ClockSensor(folder)


SENSORS: dict[str, Callable[[int, Path], Sensor]] = {
    "fake": lambda *_: FakeSensor(SCRIPT),
    "process": lambda pid, _: ProcessSensor(pid),
    "system": lambda *_: SystemSensor(),
    "nvidia": lambda *_: NvidiaSensor(),
    "rapl": lambda _, folder: rapl(folder),
    "clock": lambda _, folder: clock(folder),
    "battery": lambda *_: BatterySensor(lambda: SimpleNamespace(percent=50, power_plugged=True)),
    "battery of a Mac": lambda *_: MacBatterySensor(run=MacTools()),
    "thermal": lambda *_: ThermalSensor(run=MacTools()),
    "paging": lambda *_: PagingSensor(run=MacTools()),
    "macmon": lambda _, folder: macmon(folder),
    "zeus": lambda *_: ZeusSensor(ZeusMonitor(), on_metal),
    "zeus by windows": lambda *_: ZeusSensor(ZeusWindows(), on_metal),
    "powermetrics": lambda _, folder: powermetrics(folder),
    "apple": lambda _, folder: AppleSensor([macmon(folder)]),
}


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A real process to watch; it ends when its input does."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(params=SENSORS)
def sensor(request: pytest.FixtureRequest, worker: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[Sensor]:
    sensor = SENSORS[request.param](worker.pid, tmp_path)
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


def test_watts_and_joules_say_whether_they_are_measured(sensor: Sensor) -> None:
    if isinstance(sensor, FakeSensor):
        pytest.skip("its watts are nobody's")
    for reading in sensor.read():
        if reading.unit in (Unit.WATTS, Unit.JOULES):
            assert (reading.source or sensor.source).endswith((MEASURED, MODELLED))
            assert reading.name.endswith("_power" if reading.unit is Unit.WATTS else "_energy")


def test_every_series_is_on_the_page(sensor: Sensor) -> None:
    if isinstance(sensor, FakeSensor):
        pytest.skip("its series are nobody's")
    for reading in sensor.read():
        name = re.sub(r"^gpu\d+", "gpu0", re.sub(r"^cpu_[a-z]+\d*_clock", "cpu_p_clock", reading.name))
        assert re.search(rf"`{name}`.*\| {re.escape(reading.unit.value)} \|", PAGE), reading.name


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
def test_close_may_come_first(name: str, worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    SENSORS[name](worker.pid, tmp_path).close()


@pytest.mark.parametrize("name", SENSORS)
def test_it_says_what_it_is_and_why_it_is_not_there(name: str, worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    sensor = SENSORS[name](worker.pid, tmp_path)
    assert sensor.name == name.split()[0]
    assert sensor.source
    assert sensor.available() is None or len(str(sensor.available())) > 10
    sensor.close()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_defaults_are_all_under_contract(platform: str) -> None:
    names = [sensor.name for sensor in default_sensors(1, platform)]
    assert set(names) <= set(SENSORS)
    assert len(set(names)) == len(names)


def test_a_system_s_sensors_are_its_own() -> None:
    here, mac = ({sensor.name for sensor in default_sensors(1, platform)} for platform in ("linux", "darwin"))
    assert here - mac == {"nvidia", "rapl", "clock"}
    assert mac - here == {"apple", "thermal", "paging"}


def test_the_defaults_together_under_the_sampler(worker: subprocess.Popen[bytes]) -> None:
    sensors = default_sensors(worker.pid)
    sampler = Sampler(sensors, 50.0, time.monotonic())
    sampler.start()
    while not {"process_memory", "process_cpu", "system_memory_available", "system_cpu"} <= set(sampler.latest):
        time.sleep(0.01)
    telemetry = sampler.stop(PATIENCE_S)
    assert all(len(series.at_s) == len(series.values) > 0 for series in telemetry.series)
    hardware = {sensor.name for sensor in sensors} - {"process", "system"}
    assert set(telemetry.absent) <= {*hardware, "system_swap_used", "system_swap_in", "system_swap_out"}
    assert all(len(reason) < 120 for reason in telemetry.absent.values())
