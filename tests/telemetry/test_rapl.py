"""RaplSensor and ClockSensor on folders like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metalmark.telemetry.cpu import ClockSensor, RaplSensor


def domain(folder: Path, name: str, energy_uj: int, range_uj: int = 262_143_328_850) -> Path:
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text("vendor_id\t: AuthenticAMD\n")
    return path


def read(sensor: RaplSensor) -> dict[str, object]:
    return {reading.name: reading.value for reading in sensor.read()}


def test_packages_are_summed_and_their_parts_are_not(tmp_path: Path, cpuinfo: Path) -> None:
    root = tmp_path / "powercap"
    first = domain(root / "intel-rapl:0", "package-0", 5_000_000)
    second = domain(root / "intel-rapl:1", "package-1", 0)
    domain(root / "intel-rapl:0:0", "core", 0)
    memory = domain(root / "intel-rapl:0:1", "dram", 100)
    domain(root / "intel-rapl:2", "psys", 0)
    domain(root / "intel-rapl-mmio:0", "package-0", 0)
    sensor = RaplSensor(root, cpuinfo)
    assert sensor.available() is None
    assert read(sensor) == {"cpu_energy": 0, "ram_energy": 0}
    first.write_text("7000000\n")
    second.write_text("500000\n")
    memory.write_text("250100\n")
    assert read(sensor) == {"cpu_energy": 2.5, "ram_energy": 0.25}
    sensor.close()
    assert sensor.read() == []


def test_a_counter_that_starts_again_goes_on_counting(tmp_path: Path, cpuinfo: Path) -> None:
    energy = domain(tmp_path / "powercap" / "intel-rapl:0", "package-0", 9_000_000, range_uj=10_000_000)
    sensor = RaplSensor(tmp_path / "powercap", cpuinfo)
    assert sensor.available() is None
    for now_uj, joules in ((9_500_000, 0.5), (1_000_000, 2.0), (0, 11.0)):
        energy.write_text(str(now_uj))
        assert read(sensor) == {"cpu_energy": joules}


@pytest.mark.parametrize(("vendor", "source"), [("GenuineIntel", "rapl, measured"), ("AuthenticAMD", "rapl, modelled")])
def test_who_measures_and_who_computes(tmp_path: Path, cpuinfo: Path, vendor: str, source: str) -> None:
    cpuinfo.write_text(f"vendor_id\t: {vendor}\n")
    domain(tmp_path / "powercap" / "intel-rapl:0", "package-0", 0)
    sensor = RaplSensor(tmp_path / "powercap", cpuinfo)
    assert sensor.available() is None
    assert sensor.source == source


def test_absent(tmp_path: Path, cpuinfo: Path) -> None:
    reason = RaplSensor(tmp_path / "powercap", cpuinfo).available()
    assert reason == "the system shows no energy counters of its CPU (a virtual machine has none)"


def test_root_alone_may_read_it(tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    energy = domain(tmp_path / "powercap" / "intel-rapl:0", "package-0", 0)
    energy.chmod(0)
    if os.geteuid() == 0:
        read_text = Path.read_text

        def refuse(path: Path, *arguments: str, **options: str) -> str:
            if path == energy:
                raise PermissionError(13, "Permission denied")
            return read_text(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", refuse)
    sensor = RaplSensor(tmp_path / "powercap", cpuinfo)
    assert sensor.available() == "the system lets only root read the CPU's energy counters"
    assert sensor.read() == []


def test_nonsense_in_a_counter_is_a_reason(tmp_path: Path, cpuinfo: Path) -> None:
    domain(tmp_path / "powercap" / "intel-rapl:0", "package-0", 0).write_text("lots")
    assert "can't be read" in str(RaplSensor(tmp_path / "powercap", cpuinfo).available())


def test_the_fastest_core_s_clock_at_most_once_a_second(tmp_path: Path) -> None:
    for number, khz in enumerate((1_200_000, 3_400_000)):
        folder = tmp_path / f"policy{number}"
        folder.mkdir()
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    sensor = ClockSensor(tmp_path)
    assert sensor.available() is None
    assert [reading.value for reading in sensor.read()] == [3400]
    sensor.close()
    assert sensor.read() == []
    assert "no clocks" in str(ClockSensor(tmp_path / "nothing").available())
