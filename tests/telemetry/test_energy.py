"""Energy of a window against integrals known by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.model.run import Absent, Series
from metalmark.telemetry.base import MEASURED, MODELLED
from metalmark.telemetry.energy import COUNTER, TRAPEZOID, Energy, energy_by, energy_of, parts_of


def by_counter(series: Series, begin_s: float, end_s: float) -> Energy | Absent:
    return energy_by(series, COUNTER, begin_s, end_s)


def by_power(series: Series, begin_s: float, end_s: float) -> Energy | Absent:
    return energy_by(series, TRAPEZOID, begin_s, end_s)


TICKS = tuple(n * 0.2 for n in range(101))


def counter(watts: float = 50.0, at_s: tuple[float, ...] = TICKS, name: str = "gpu0_energy") -> Series:
    return Series(name=name, unit="J", source="nvml" + MEASURED, at_s=at_s, values=tuple(watts * at for at in at_s))


def power(values: tuple[float, ...], at_s: tuple[float, ...] = TICKS, name: str = "gpu0_power") -> Series:
    return Series(name=name, unit="W", source="macmon" + MODELLED, at_s=at_s, values=values)


def joules(energy: Energy | Absent) -> float:
    assert isinstance(energy, Energy), energy
    return energy.joules


def reason(energy: Energy | Absent) -> str:
    assert isinstance(energy, Absent), energy
    return energy.reason


def test_a_counter_is_interpolated_at_the_window_s_ends() -> None:
    energy = by_counter(counter(), 4.05, 9.15)
    assert joules(energy) == pytest.approx(50 * 5.1)
    assert isinstance(energy, Energy)
    assert (energy.series, energy.source, energy.method) == ("gpu0_energy", "nvml, measured", "counter")
    assert not energy.modelled


def test_power_is_integrated_by_trapezoids() -> None:
    ramp = power(TICKS)  # P(t) = t, whose integral is t²/2
    energy = by_power(ramp, 4.05, 9.15)
    assert joules(energy) == pytest.approx((9.15**2 - 4.05**2) / 2)
    assert isinstance(energy, Energy)
    assert energy.method == "trapezoid"
    assert energy.modelled


def test_a_window_that_ends_on_readings() -> None:
    assert joules(by_power(power(TICKS), TICKS[5], TICKS[50])) == pytest.approx((10**2 - 1) / 2)
    assert joules(by_counter(counter(), TICKS[5], TICKS[50])) == pytest.approx(50 * 9)


@given(st.floats(0.0, 8.0), st.floats(0.7, 10.0), st.floats(0.1, 1000.0))
def test_both_agree_on_a_steady_load(begin_s: float, lasts_s: float, watts: float) -> None:
    both = [counter(watts), power((watts,) * len(TICKS))]
    by_both = by_counter(both[0], begin_s, begin_s + lasts_s), by_power(both[1], begin_s, begin_s + lasts_s)
    assert [joules(one) for one in by_both] == pytest.approx([watts * lasts_s] * 2)


def test_the_counter_comes_first() -> None:
    steady = power((70.0,) * len(TICKS))
    assert joules(energy_of("gpu0", [steady, counter()], 2.0, 4.0)) == pytest.approx(100)
    assert joules(energy_of("gpu0", [steady], 2.0, 4.0)) == pytest.approx(140)


def test_a_counter_that_stands_still_is_not_nothing() -> None:
    frozen = counter(0.0)
    assert reason(by_counter(frozen, 2.0, 4.0)) == "the counter did not move"
    assert joules(energy_of("gpu0", [frozen, power((70.0,) * len(TICKS))], 2.0, 4.0)) == pytest.approx(140)
    assert reason(energy_of("gpu0", [frozen], 2.0, 4.0)) == "gpu0_energy: the counter did not move"


def test_a_little_beyond_the_readings_is_like_the_rest() -> None:
    assert joules(by_counter(counter(), 10.1, 20.1)) == pytest.approx(500)
    assert joules(by_power(power((50.0,) * len(TICKS)), 10.1, 20.1)) == pytest.approx(500)


@pytest.mark.parametrize("method", [by_counter, by_power])
def test_too_little_is_a_reason(method: type) -> None:
    series = counter()
    assert reason(method(series, 4.0, 4.3)) == "too few readings: 2 in the 0.3 s"
    assert reason(method(series, 15.0, 25.0)) == "the readings cover 50% of the 10.0 s"
    assert reason(method(series, 30.0, 40.0)) == "too few readings: 0 in the 10.0 s"
    assert reason(method(series, 4.0, 4.0)) == "the window is empty"
    assert "too few" in reason(method(counter(at_s=()), 4.0, 8.0))


def test_a_hole_spoils_power_and_not_a_counter() -> None:
    holed = (*TICKS[:30], *TICKS[60:])
    assert joules(by_counter(counter(at_s=holed), 2.0, 18.0)) == pytest.approx(800)
    assert reason(by_power(power((50.0,) * 71, holed), 2.0, 18.0)) == "no reading for 6.2 s of the 16.0 s"


def test_parts() -> None:
    series = [
        counter(),
        power(TICKS),
        counter(name="cpu_energy"),
        power(TICKS, name="system_power"),
        power(TICKS, name="x"),
    ]
    assert parts_of(series) == ("gpu0", "cpu", "system")
    assert reason(energy_of("ane", series, 0, 1)) == "nothing here gives the energy or the power of ane"
