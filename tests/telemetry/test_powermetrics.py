"""What powermetrics prints: written here, and recorded where the recordings lie beside the checkout."""

from __future__ import annotations

import plistlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.telemetry.powermetrics import PowermetricsSensor, parse_line
from tests.telemetry.fakes import PLIST

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples" / "powermetrics"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")


def values(text: str) -> dict[str, Any]:
    return {reading.name: reading.value for reading in parse_line(text)}


def plist(**fields: object) -> str:
    return plistlib.dumps(fields).decode()


def test_a_sample() -> None:
    expected = {
        "cpu_power": 4.0,
        "cpu_energy": 2.0,
        "gpu0_power": 12.0,
        "gpu0_energy": 6.0,
        "ane_power": 0.0,
        "ane_energy": 0.0,
        "soc_power": 16.0,
        "gpu0_clock": 1398,
        "gpu0_utilisation": 75,
        "cpu_e0_clock": 1500,
        "cpu_m0_clock": 4250,
        "thermal_pressure": 1,
    }
    assert values(PLIST) == expected
    assert values("\0" + PLIST + "\n") == expected


def test_without_the_cpu_s_sampler_power_comes_from_energy_and_time() -> None:
    found = values(plist(elapsed_ns=2_000_000_000, gpu={"gpu_energy": 30, "idle_ratio": 0.5}))
    assert found == {"gpu0_energy": 0.03, "gpu0_power": 0.015, "gpu0_utilisation": 50}


def test_a_gpu_clock_that_is_really_in_hertz() -> None:
    assert values(plist(gpu={"freq_hz": 1.398e9})) == {"gpu0_clock": 1398}


def test_an_intel_mac_s_package_is_in_watts() -> None:
    found = values(
        plist(elapsed_ns=1_000_000_000, processor={"package_watts": 18.25, "freq_hz": 2.4e9, "packages": []})
    )
    assert found == {"soc_power": 18.25}


def test_three_kinds_of_cores_each_have_their_clock() -> None:
    names = ("P0-Cluster", "M0-Cluster", "M1-Cluster", "E-Cluster")
    clusters = [{"name": name, "freq_hz": 1e9 * number} for number, name in enumerate(names, 1)]
    assert values(plist(processor={"clusters": clusters})) == {
        "cpu_p0_clock": 1000,
        "cpu_m0_clock": 2000,
        "cpu_m1_clock": 3000,
        "cpu_e_clock": 4000,
    }


def test_nominal_is_no_pressure() -> None:
    assert values(plist(thermal_pressure="Nominal")) == {"thermal_pressure": 0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "Machine model: Mac16,8",
        "<plist>",
        "<plist version='1.0'><array/></plist>",
        PLIST[:-20],
        PLIST + PLIST,
    ],
)
def test_nonsense_gives_nothing(text: str) -> None:
    assert parse_line(text) == []


sections = st.dictionaries(
    st.sampled_from(["clusters", "cpu_power", "gpu_energy", "freq_hz", "idle_ratio", "combined_power"]),
    st.booleans()
    | st.floats()
    | st.integers(-(2**60), 2**60)
    | st.lists(st.dictionaries(st.just("name"), st.just("P"))),
)


@given(sections | st.booleans(), sections | st.integers(0, 9), st.integers(-5, 5), st.text())
def test_never_raises(processor: object, gpu: object, elapsed: int, text: str) -> None:
    parse_line(text)
    for reading in parse_line(plist(processor=processor, gpu=gpu, elapsed_ns=elapsed, thermal_pressure=False)):
        assert isinstance(reading.value, int | float)
        assert reading.value >= 0


def test_it_says_that_it_needs_root() -> None:
    sensor = PowermetricsSensor(root=False)
    assert sensor.available() == "powermetrics needs root"
    sensor.close()


@needs_samples
def test_recorded_m1() -> None:
    found = values((SAMPLES / "pumas-m1.plist").read_text())
    assert found["cpu_power"] == pytest.approx(0.0440773)
    assert found["cpu_energy"] == 0.089
    assert found["gpu0_energy"] == 0.031
    assert found["gpu0_clock"] == pytest.approx(714.836)
    assert found["gpu0_utilisation"] == pytest.approx(1.6659)
    assert found["cpu_e_clock"] == pytest.approx(1022.87)
    assert found["cpu_p_clock"] == pytest.approx(618.173)
    assert found["thermal_pressure"] == 0


@needs_samples
def test_recorded_gpu_sampler_alone_five_times() -> None:
    samples = (SAMPLES / "matias-gpu_power_multi.plist").read_text().split("\0")
    found = [values(sample) for sample in samples]
    assert len(found) == 5
    for one in found:
        assert 300 < one["gpu0_clock"] < 1600
        assert 0 <= one["gpu0_utilisation"] <= 100
        assert one["gpu0_power"] > 0


@needs_samples
@pytest.mark.parametrize("name", ["codecarbon-m1-text.txt", "singhkays-gb5-metal-head.txt", "singhkays-help.txt"])
def test_recorded_text_is_no_sample(name: str) -> None:
    assert parse_line((SAMPLES / name).read_text(errors="replace")) == []
