"""ZeusSensor on stand-ins for its monitor; AppleSensor's choice of tool."""

from __future__ import annotations

import importlib.util

import pytest

from metalmark.model.run import Absent
from metalmark.telemetry import zeus
from metalmark.telemetry.base import Reading, Unit
from metalmark.telemetry.sensors import AppleSensor
from metalmark.telemetry.zeus import ZeusSensor
from tests.telemetry.fakes import FakeSensor, ZeusMonitor, ZeusWindows, on_metal


def read(sensor: ZeusSensor) -> dict[str, float | Absent]:
    return {reading.name: reading.value for reading in sensor.read()}


def test_counters_count_from_the_first_reading() -> None:
    sensor = ZeusSensor(ZeusMonitor(), on_metal)
    assert sensor.available() is None
    missing = Absent("this chip does not report it")
    assert read(sensor) == {"cpu_energy": 0, "gpu0_energy": 0, "ane_energy": 0, "ram_energy": missing}
    assert read(sensor) == {"cpu_energy": 1.5, "gpu0_energy": 0.5, "ane_energy": 0, "ram_energy": missing}


def test_windows_are_added_up() -> None:
    monitor = ZeusWindows()
    sensor = ZeusSensor(monitor, on_metal)
    assert sensor.available() is None
    assert sensor.available() is None
    assert read(sensor)["cpu_energy"] == 1.5
    assert read(sensor)["cpu_energy"] == 3.0
    assert isinstance(read(sensor)["ram_energy"], Absent)
    sensor.close()
    assert monitor.open == set()
    assert sensor.read() == []


def test_in_a_virtual_machine_it_is_not_even_opened() -> None:
    monitor = ZeusWindows()
    sensor = ZeusSensor(monitor, is_virtual=lambda: True)
    assert sensor.available() == "zeus is left out in a virtual machine"
    assert monitor.open == set()
    sensor.close()


@pytest.mark.parametrize(("present", "virtual"), [("1", True), ("0", False), (None, False)])
def test_the_hypervisor_s_key_says_so(monkeypatch: pytest.MonkeyPatch, present: str | None, virtual: bool) -> None:
    values = {} if present is None else {"kern.hv_vmm_present": present}
    monkeypatch.setattr(zeus, "read_sysctl", lambda: values)
    assert zeus.in_virtual_machine() is virtual


@pytest.mark.skipif(importlib.util.find_spec("zeus_apple_silicon") is not None, reason="it is installed")
def test_it_is_not_installed() -> None:
    assert ZeusSensor(is_virtual=on_metal).available() == "zeus-apple-silicon is not installed"


class Broken(FakeSensor):
    def available(self) -> str | None:
        raise RuntimeError("no such chip")


def fake(name: str, unavailable: str | None = None) -> FakeSensor:
    return FakeSensor([[Reading(name=name, unit=Unit.WATTS, value=1.0)]] * 3, name=name, unavailable=unavailable)


def test_the_first_that_answers_is_used_alone() -> None:
    tools = [Broken([], name="a"), fake("b", "b needs root"), fake("c"), fake("d")]
    sensor = AppleSensor(tools)
    assert sensor.available() is None
    assert sensor.available() is None
    assert [reading.name for reading in sensor.read()] == ["c"]
    assert tools[0].closed.is_set()
    assert tools[1].closed.is_set()
    assert not tools[2].closed.is_set()
    sensor.close()
    assert tools[2].closed.is_set()


def test_without_any_it_gives_each_reason() -> None:
    sensor = AppleSensor([Broken([], name="a"), fake("b", "b needs root")])
    assert sensor.available() == "a raised RuntimeError: no such chip; b needs root (try: brew install macmon)"
    assert sensor.read() == []
    assert sensor.source
