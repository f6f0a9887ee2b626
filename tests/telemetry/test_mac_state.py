"""Battery, heat and paging as a Mac's tools tell them: written here, and recorded where the recordings lie."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.machine.apple import PowerSource, parse_power
from metalmark.model.run import Absent
from metalmark.telemetry.base import Reading, ReadInterval, SensorLostError, Unit
from metalmark.telemetry.battery import (
    BatterySensor,
    MacBatterySensor,
    ThermalSensor,
    parse_batt,
    parse_settings,
    parse_therm,
)
from metalmark.telemetry.system import PagingSensor, parse_pressure, parse_vm_stat
from metalmark.telemetry.tool import TOOL_EVERY_S, AnswerSensor
from tests.telemetry.fakes import BATT, PRESSURE, SETTINGS, THERM, VM_STAT, MacTools

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")


def values(readings: list[Reading]) -> dict[str, Any]:
    return {reading.name: reading.value for reading in readings}


def test_batteries() -> None:
    assert values(parse_batt(BATT)) == {"on_battery": 1, "battery_charge": 72}
    assert values(parse_batt("Now drawing from 'AC Power'\n")) == {"on_battery": 0}
    assert parse_batt("No adapter attached.\n") == []


UPS = " -Back-UPS ES 700 (id=1234)\t87%; charging present: true\n"
INTERNAL = " -InternalBattery-0 (id=4653155)\t64%; discharging; 3:15 remaining present: true\n"


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("Now drawing from 'UPS Power'\n" + UPS, PowerSource(on_battery=True, percent=87, from_ups=True)),
        ("Now drawing from 'UPS Power'\n", PowerSource(on_battery=True, from_ups=True)),
        ("Now drawing from 'UPS Power'\n" + UPS + INTERNAL, PowerSource(on_battery=True, percent=64, from_ups=True)),
        ("Now drawing from 'Battery Power'\n" + UPS + INTERNAL, PowerSource(on_battery=True, percent=64)),
        ("Now drawing from 'AC Power'\n" + UPS, PowerSource(on_battery=False)),
        ("Now drawing from 'AC Power'\n" + INTERNAL + UPS, PowerSource(on_battery=False, percent=64)),
        ("Now drawing from 'AC Power'\n" + INTERNAL.replace("64", "640"), PowerSource(on_battery=False)),
    ],
    ids=["a desktop", "no charge", "a laptop behind it", "its own", "on mains", "a laptop on mains", "nonsense"],
)
def test_a_ups_is_a_battery_and_the_charge_is_the_mac_s_own_where_it_has_one(text: str, power: PowerSource) -> None:
    assert parse_power(text) == power


def test_low_power_mode_by_both_its_names() -> None:
    assert values(parse_settings(SETTINGS)) == {"low_power_mode": 1}
    assert values(parse_settings(" powermode 2\n lowpowermode 0\n")) == {"low_power_mode": 0}
    assert values(parse_settings(" powermode            1\n")) == {"low_power_mode": 1}
    assert parse_settings(" sleep 1\n") == []


def test_heat() -> None:
    assert values(parse_therm(THERM)) == {"thermal_warning": 0}
    limited = "2026-08-20 05:08:37 CPU Power notify\n\tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 62\n"
    assert values(parse_therm(limited)) == {"cpu_speed_limit": 62}
    assert values(parse_therm("Thermal Warning Level = 2\n")) == {"thermal_warning": 1}
    dated = "2026-11-16 10:31:02 +0100 Thermal Warning Level = {}\n"
    assert values(parse_therm(dated.format(5))) == {"thermal_warning": 1}
    assert values(parse_therm(dated.format(0))) == {"thermal_warning": 0}
    assert values(parse_therm(f"Note: No thermal warning level has been recorded\n{dated.format(5)}")) == {
        "thermal_warning": 1
    }
    assert parse_therm("usage: pmset") == []


def test_swap_traffic_counts_in_the_header_s_pages() -> None:
    assert parse_vm_stat(VM_STAT.format(3, 5)) == {"system_swap_in": 3 * 16384, "system_swap_out": 5 * 16384}
    assert parse_vm_stat("Swapins: 3.\n") == {}
    assert values(parse_pressure(PRESSURE)) == {"system_memory_free": 64}
    assert parse_pressure("memory free percentage: 640%") == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    for parse in (parse_batt, parse_settings, parse_therm, parse_vm_stat, parse_pressure):
        parse(text)


@needs_samples
def test_recorded() -> None:
    assert values(parse_therm((SAMPLES / "thermal" / "pmset_therm_nominal_notes.txt").read_text())) == {
        "thermal_warning": 0
    }
    limits = values(parse_therm((SAMPLES / "thermal" / "pmset_therm_cpu_limits.txt").read_text()))
    assert limits["cpu_speed_limit"] == 100
    swapped = parse_vm_stat((SAMPLES / "vm" / "vm_stat_8gb_heavy_swap.txt").read_text())
    assert swapped == {"system_swap_in": 37263013 * 16384, "system_swap_out": 42175482 * 16384}
    pressure = parse_pressure((SAMPLES / "vm" / "memory_pressure_Q_24gb.txt").read_text())
    assert values(pressure) == {"system_memory_free": 80}


@pytest.mark.parametrize(("sensor", "commands"), [(MacBatterySensor, 2), (ThermalSensor, 1), (PagingSensor, 2)])
def test_tools_are_started_rarely(sensor: Any, commands: int) -> None:
    tools = MacTools()
    made = sensor(run=tools)
    assert made.available() is None
    first = made.read()
    assert first
    assert [made.read() for _ in range(20)] == [[]] * 20
    assert len(tools.asked) == commands
    assert TOOL_EVERY_S >= 5


def test_pace() -> None:
    now = [100.0]
    pace = ReadInterval(5.0, now=lambda: now[0])
    assert [pace.due(), pace.due()] == [True, False]
    now[0] = 104.9
    assert not pace.due()
    now[0] = 105.0
    assert [pace.due(), pace.due()] == [True, False]


def one(text: str) -> list[Reading]:
    return [Reading(name=text, unit=Unit.RATIO, value=1.0)] if text else []


def test_a_tool_that_fails_is_not_asked_again_and_the_last_one_ends_the_sensor() -> None:
    answers: dict[str, list[str | Absent]] = {
        "good": ["a", "b", Absent("good gave no answer within 3 s")],
        "bad": ["c", ""],
    }
    asked: list[str] = []

    def run(argv: tuple[str, ...], _: float) -> str | Absent:
        asked.append(argv[0])
        return answers[argv[0]].pop(0)

    tools = AnswerSensor({("good",): one, ("bad",): one}, run, every_s=0.0)
    assert tools.available() is None
    assert values(tools.read()) == {"a": 1, "c": 1}
    assert values(tools.read()) == {"b": 1}
    with pytest.raises(SensorLostError, match="bad says nothing of it; good gave no answer within 3 s"):
        tools.read()
    assert asked == ["good", "bad", "good", "bad", "good"]


def test_no_tool_at_all_is_a_reason() -> None:
    sensor = ThermalSensor(run=lambda *_: Absent("pmset could not be started: No such file or directory"))
    assert sensor.available() == "pmset could not be started: No such file or directory"


def battery(percent: float, plugged: bool | None) -> SimpleNamespace:
    return SimpleNamespace(percent=percent, power_plugged=plugged)


def test_battery_elsewhere(tmp_path: Path) -> None:
    none = tmp_path / "none"
    on = BatterySensor(lambda: battery(55.5, False), none)
    assert on.available() is None
    assert values(on.read()) == {"battery_charge": 55.5, "on_battery": 1}
    assert on.read() == []
    assert values(BatterySensor(lambda: battery(80, True), none).read())["on_battery"] == 0
    assert values(BatterySensor(lambda: battery(80, None), none).read()) == {"battery_charge": 80}
    assert BatterySensor(lambda: None, none).available() == "no battery is seen from here"


@pytest.mark.parametrize(("profile", "low"), [("low-power", 1), ("balanced", 0), ("performance", 0)])
def test_low_power_elsewhere(tmp_path: Path, profile: str, low: float) -> None:
    (tmp_path / "platform_profile").write_text(f"{profile}\n")
    sensor = BatterySensor(lambda: None, tmp_path / "platform_profile")
    assert sensor.available() is None
    assert values(sensor.read()) == {"low_power_mode": low}
