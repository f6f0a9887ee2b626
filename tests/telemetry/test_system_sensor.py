"""SystemSensor on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from metalmark.model.run import Absent
from metalmark.telemetry import system
from metalmark.telemetry.system import SystemSensor


def test_figures_are_possible_ones() -> None:
    sensor = SystemSensor()
    assert sensor.available() is None
    first = {reading.name: reading.value for reading in sensor.read()}
    available = first["system_memory_available"]
    assert isinstance(available, int)
    assert 0 < available <= psutil.virtual_memory().total
    assert "system_cpu" not in first
    while "system_cpu" not in (later := {reading.name: reading.value for reading in sensor.read()}):
        time.sleep(0.05)
    share = later["system_cpu"]
    assert isinstance(share, float)
    assert 0 <= share <= 100


def test_traffic_counts_from_the_first_reading_and_is_called_what_it_is() -> None:
    sensor = SystemSensor()
    assert sensor.available() is None
    first = {reading.name: reading.value for reading in sensor.read()}
    word = "swap" if sys.platform == "linux" else "page"
    if isinstance(first[f"system_{word}_in"], Absent):
        pytest.skip(first[f"system_{word}_in"].reason)
    assert first[f"system_{word}_in"] == first[f"system_{word}_out"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/vmstat")
@pytest.mark.parametrize("text", [None, b"nr_free_pages 1\n"])
def test_without_counters_swap_is_absent_and_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "vmstat").write_bytes(text)
    monkeypatch.setattr(system, "_VMSTAT", tmp_path / "vmstat")
    sensor = SystemSensor()
    assert sensor.available() is None
    values = {reading.name: reading.value for reading in sensor.read()}
    assert isinstance(values["system_swap_used"], Absent)
    assert isinstance(values["system_swap_in"], Absent)
    assert not isinstance(values["system_memory_available"], Absent)
