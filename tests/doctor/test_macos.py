"""What a Mac's tools print of its state: written here, and recorded where the recordings lie beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from metalmark.doctor import macos
from metalmark.doctor.readers import parse_meminfo
from metalmark.doctor.scene import Swap
from metalmark.machine.apple import Heat, PowerSource
from metalmark.model.run import Absent

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")
MIB = 2**20

LAPTOP = """Now drawing from 'Battery Power'
 -InternalBattery-0 (id=1)\t42%; discharging; 3:01 remaining present: true
"""
SETTINGS = """System-wide power settings:
Currently in use:
 standby              1
 lowpowermode         1
 sleep                1
"""


def test_sysctl() -> None:
    text = (
        "hw.memsize: 17179869184\nvm.swapusage: total = 2048.00M  used = 512.50M  free = 1535.50M  (encrypted)\n"
        "kern.osproductversion: 14.6.1\nsysctl.proc_translated: 0\nhw.secret: 1\nsysctl: unknown oid 'x'\n"
    )
    read = macos.read_sysctl(text)
    assert isinstance(read, dict)
    assert read["memory_bytes"] == 17179869184
    assert read["macos"] == "14.6.1"
    assert read["swap"] == Swap(total_bytes=2048 * MIB, used_bytes=round(512.5 * MIB))
    assert "hw.secret" not in read["sysctl"]


def test_swap_in_another_country_and_another_unit() -> None:
    assert macos.parse_swap("total = 2,00G  used = 1,50G  free = 0,5G") == Swap(
        total_bytes=2 * 1024 * MIB, used_bytes=1536 * MIB
    )
    assert macos.parse_swap("total = lots") is None


def test_battery() -> None:
    assert macos.read_battery(LAPTOP) == {"power": PowerSource(on_battery=True, percent=42)}
    assert macos.read_battery("Now drawing from 'AC Power'\n") == {"power": PowerSource(on_battery=False)}
    assert isinstance(macos.read_battery("Batterie: 42%"), Absent)


def test_settings() -> None:
    assert macos.read_settings(SETTINGS) == {"low_power": True}
    assert macos.read_settings(SETTINGS.replace("lowpowermode         1", "lowpowermode 0")) == {"low_power": False}
    assert macos.read_settings("System-wide power settings:\n sleep 1\n") == {}
    assert isinstance(macos.read_settings("zzz"), Absent)


def test_heat() -> None:
    assert macos.read_heat("Note: No thermal warning level has been recorded\n") == {"heat": Heat(warning_level=0)}
    held = macos.read_heat("\tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 62\nThermal Warning Level = 1\n")
    assert held == {"heat": Heat(speed_limit_percent=62, warning_level=1)}
    assert isinstance(macos.read_heat("hot"), Absent)


def test_pressure() -> None:
    text = "The system has 1 (1 pages).\nSystem-wide memory free percentage: 7%\n"
    assert macos.read_pressure(text) == {"memory_free_percent": 7}
    assert isinstance(macos.read_pressure("free percentage: 700%"), Absent)


def test_meminfo() -> None:
    text = "MemTotal: 100 kB\nSwapTotal:     2048 kB\nSwapFree:      1024 kB\n"
    assert parse_meminfo(text) == Swap(total_bytes=2 * MIB, used_bytes=MIB)
    assert parse_meminfo("SwapTotal: a lot") is None


@needs_samples
@pytest.mark.parametrize(("name", "used"), [("swapusage_8gb.txt", 4862.88), ("swapusage_24gb.txt", 2694.19)])
def test_recorded_swap(name: str, used: float) -> None:
    read = macos.read_sysctl((SAMPLES / "vm" / name).read_text())
    assert isinstance(read, dict)
    assert read["swap"].used_bytes == round(used * MIB)


@needs_samples
def test_recorded_sysctl_with_an_unknown_key() -> None:
    read = macos.read_sysctl((SAMPLES / "sysctl" / "m2pro_hw_with_unknown_oid.txt").read_text())
    assert isinstance(read, dict)
    assert read["memory_bytes"] == 17179869184
    assert read["swap"].used_bytes == round(23181.62 * MIB)


@needs_samples
def test_recorded_pressure() -> None:
    text = (SAMPLES / "vm" / "memory_pressure_Q_24gb.txt").read_text()
    assert macos.read_pressure(text) == {"memory_free_percent": 80}


@needs_samples
def test_recorded_heat() -> None:
    folder = SAMPLES / "thermal"
    assert macos.read_heat((folder / "pmset_therm_nominal_notes.txt").read_text()) == {"heat": Heat(warning_level=0)}
    limits = macos.read_heat((folder / "pmset_therm_cpu_limits.txt").read_text())
    assert limits == {"heat": Heat(speed_limit_percent=100, warning_level=0)}
