"""What macmon prints, by version: written here, and recorded where the recordings lie beside the checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.model.run import Absent
from metalmark.telemetry.base import MEASURED, MODELLED, Unit
from metalmark.telemetry.macmon import MacmonSensor, parse_line
from tests.telemetry.fakes import MACMON, MACMON_LINE, PATIENCE_S, tool

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "macmon"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")

OLD_LINE = {
    "temp": {"cpu_temp_avg": 40.5, "gpu_temp_avg": 0.0},
    "ecpu_usage": [1210, 0.08],
    "pcpu_usage": [1260, 0.002],
    "gpu_usage": [444, 0.25],
    "cpu_power": 0.5,
    "gpu_power": 0.125,
    "sys_power": 0.0,
}


def values(text: str) -> dict[str, Any]:
    return {reading.name: reading.value for reading in parse_line(text)}


def test_a_line_of_0_8() -> None:
    assert values(json.dumps(MACMON_LINE)) == {
        "cpu_power": 4.5,
        "gpu0_power": 12.25,
        "ane_power": 0.0,
        "ram_power": 1.5,
        "soc_power": 16.75,
        "system_power": 31.5,
        "cpu_temperature": 61.5,
        "gpu0_temperature": 58.25,
        "cpu_e_clock": 1200,
        "cpu_p_clock": 3504,
        "gpu0_clock": 1398,
        "gpu0_scaled": 61,
        "gpu0_utilisation": 98,
    }


def test_only_the_whole_machine_s_power_is_measured() -> None:
    sources = {reading.name: reading.source or MacmonSensor.source for reading in parse_line(json.dumps(MACMON_LINE))}
    assert sources["system_power"].endswith(MEASURED)
    watts = [reading.name for reading in parse_line(json.dumps(MACMON_LINE)) if reading.unit is Unit.WATTS]
    assert {name for name in watts if sources[name].endswith(MODELLED)} == set(watts) - {"system_power"}


def test_a_line_of_0_7_has_its_load_scaled_by_the_clock_and_no_zeros_for_what_has_no_meter() -> None:
    found = values(json.dumps(OLD_LINE))
    assert found["gpu0_clock"] == 444
    assert found["gpu0_scaled"] == 25
    assert isinstance(found["gpu0_utilisation"], Absent)
    assert found["cpu_e_clock"] == 1210
    assert found["cpu_p_clock"] == 1260
    assert "system_power" not in found
    assert "gpu0_temperature" not in found


@pytest.mark.parametrize(
    ("kinds", "clocks"),
    [
        ((), {"cpu_p_clock": 3504, "cpu_e_clock": 1200}),
        (("Performance", "Efficiency"), {"cpu_p_clock": 3504, "cpu_e_clock": 1200}),
        (("Super", "Efficiency"), {"cpu_p_clock": 3504, "cpu_e_clock": 1200}),
        (("Super", "Performance"), {"cpu_p_clock": 3504, "cpu_m_clock": 1200}),
        (
            ("Super", "Performance", "Efficiency"),
            {
                "cpu_p_clock": 3504,
                "cpu_e_clock": Absent("macmon gives one clock for the two slower kinds of cores that this chip has"),
            },
        ),
    ],
    ids=["unknown", "M1 to M4", "M5", "M5 Pro and Max", "three kinds"],
)
def test_clocks_are_named_for_the_cores_that_the_chip_has(
    tmp_path: Path, kinds: tuple[str, ...], clocks: dict[str, float | Absent]
) -> None:
    sensor = MacmonSensor(tool(tmp_path, MACMON + "time.sleep(600)\n"), start_s=PATIENCE_S, kinds=lambda: kinds)
    assert sensor.available() is None
    found = {reading.name: reading.value for reading in sensor.read() if reading.unit is Unit.MEGAHERTZ}
    sensor.close()
    assert found == {"gpu0_clock": 1398, **clocks}


@pytest.mark.parametrize(
    "text", ["", "macmon 0.7", "[]", "null", "{", '{"gpu_usage": 3}', '{"temp": []}', '{"cpu_power": "4"}', "[" * 10**5]
)
def test_nonsense_gives_nothing(text: str) -> None:
    assert parse_line(text) == []


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-1.0", "true", "null", '"x"', "1" + "0" * 400])
def test_a_bad_figure_costs_itself_alone(bad: str) -> None:
    found = values(f'{{"cpu_power": {bad}, "gpu_power": 2.0, "gpu_usage": [{bad}, {bad}]}}')
    assert found == {"gpu0_power": 2.0}


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@given(st.dictionaries(st.sampled_from([*MACMON_LINE, *OLD_LINE]), anything), st.text())
def test_never_raises(line: dict[str, Any], text: str) -> None:
    parse_line(text)
    for reading in parse_line(json.dumps(line)):
        assert isinstance(reading.value, Absent) or reading.value >= 0


@needs_samples
@pytest.mark.parametrize(
    ("name", "clock", "watts"),
    [("pipe_pre06_no_timestamp.jsonl", 169, 10.269848), ("pipe_v06_beszel.jsonl", 503, 10.4955415725708)],
)
def test_recorded_lines(name: str, clock: float, watts: float) -> None:
    found = values((SAMPLES / name).read_text())
    assert found["gpu0_clock"] == clock
    assert found["system_power"] == watts
    assert 0 < found["gpu0_scaled"] < 2
    assert isinstance(found["gpu0_utilisation"], Absent)


@needs_samples
def test_the_example_of_0_8() -> None:
    text = (SAMPLES / "pipe_v08_readme_example.jsonc").read_text()
    bare = re.sub(r",(\s*[}\]])", r"\1", re.sub(r"//.*", "", text))
    found = values(bare)
    assert found["gpu0_utilisation"] == 9
    assert found["gpu0_scaled"] == pytest.approx(2.1497859)
    assert found["gpu0_clock"] == 461
    assert found["cpu_p_clock"] == 1800
    assert found["soc_power"] == 0.22231553
