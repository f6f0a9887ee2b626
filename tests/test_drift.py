from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from metalmark.stats.drift import (
    LEAST_COUNTED_BYTES,
    LEAST_FOOTPRINT_BYTES,
    condense,
    drift,
    growth,
    mann_kendall,
    theil_sen,
)

MB = 1_000_000


def times(shape: Callable[[float], float], *, blocks: int = 40, noise: float = 0.03, seed: int = 0) -> list[float]:
    """Step times along a run from 0 to 1, each with its own noise."""
    chance = random.Random(seed)
    return [shape(i / (blocks - 1)) * (1 + chance.gauss(0, noise)) for i in range(blocks)]


def found(shape: Callable[[float], float], **options: float) -> int:
    """In how many of 20 seeded runs."""
    runs = [drift(times(shape, seed=seed, **options)) for seed in range(20)]  # type: ignore[arg-type]
    return sum(run is not None and run.significant for run in runs)


@pytest.mark.parametrize(
    "shape",
    [lambda at: 1 + 0.2 * at, lambda at: 1 + at, lambda at: 1.5 if at > 0.5 else 1.0, lambda at: 2 - math.exp(-4 * at)],
    ids=["20% evenly", "100% evenly", "a jump", "heat that levels off"],
)
def test_what_slows_down_drifts(shape: Callable[[float], float]) -> None:
    assert found(shape) >= 19


def test_what_speeds_up_drifts_too() -> None:
    assert found(lambda at: 1 - 0.3 * at) == 20
    faster = drift(times(lambda at: 1 - 0.3 * at))
    assert faster is not None
    assert faster.slope_share < -0.2
    assert faster.ratio_last_tenth_to_first < 0.8


def test_noise_alone_does_not_drift() -> None:
    assert found(lambda _: 1.0) <= 1
    assert found(lambda _: 1.0, blocks=12) <= 1
    assert found(lambda _: 1.0, blocks=1000) <= 1


def test_a_bump_in_the_middle_is_no_drift() -> None:
    assert found(lambda at: 1.5 if 0.4 < at < 0.6 else 1.0) <= 1


def test_a_slope_too_small_to_spoil_anything_is_not_said() -> None:
    exact = drift([1 + 0.02 * i / 39 for i in range(40)])
    assert exact is not None
    assert exact.slope_share == pytest.approx(0.02)
    assert not exact.significant


def test_the_figures_of_a_run_that_doubles() -> None:
    doubled = drift([1 + i / 99 for i in range(100)])
    assert doubled is not None
    assert doubled.significant
    assert doubled.slope_share == pytest.approx(1.0, abs=0.02)
    assert doubled.ratio_last_tenth_to_first == pytest.approx(1.9, abs=0.05)


def test_equal_blocks_and_few_blocks() -> None:
    assert drift([1.0] * 7) is None
    equal = drift([1.0] * 20)
    assert equal is not None
    assert not equal.significant
    assert equal == (1.0, 0.0, False)


def test_wild_points_do_not_bend_the_line() -> None:
    values = [float(i) for i in range(20)]
    values[3], values[17] = 500.0, -500.0
    assert theil_sen(range(20), values).slope == pytest.approx(1.0, abs=0.05)


def test_ties_count_in_the_rank_test() -> None:
    assert mann_kendall([1.0] * 10) == 0.0
    assert mann_kendall([1.0] * 5 + [2.0] * 5) > 2
    assert mann_kendall([float(i) for i in range(10)]) == pytest.approx(44 / math.sqrt(125))


def test_long_series_are_condensed_in_order() -> None:
    assert condense([1.0, 2.0]) == [1.0, 2.0]
    short = condense([float(i) for i in range(1001)])
    assert len(short) == 60
    assert short == sorted(short)
    assert short[0] == pytest.approx(7.5, abs=1)


def test_a_leak_of_a_megabyte_a_step_and_of_nothing_are_told_apart() -> None:
    steps = [float(i) for i in range(1, 13)]
    leak = growth(steps, [5e8 + MB * i for i in steps], least_bytes=LEAST_FOOTPRINT_BYTES)
    nothing = growth(steps, [5e8] * 12, least_bytes=LEAST_COUNTED_BYTES)
    assert leak is not None
    assert nothing is not None
    assert leak.leaking
    assert leak.bytes_per_step == pytest.approx(MB)
    assert not nothing.leaking
    assert nothing.bytes_per_step == 0


def test_memory_that_wanders_levels_off_or_is_given_back_is_no_leak() -> None:
    chance = random.Random(1)
    steps = [100.0 * i for i in range(60)]
    wanders = [5e8 + chance.uniform(0, 6e6) for _ in steps]
    levels_off = [5e8 + 1e8 * min(i / 20, 1.0) for i in range(60)]
    given_back = [5e8 + 1e7 * (i % 10) for i in range(60)]
    falls = [5e8 - 1e6 * i for i in range(60)]
    for held in (wanders, levels_off, given_back, falls):
        seen = growth(steps, held, least_bytes=LEAST_FOOTPRINT_BYTES)
        assert seen is not None
        assert not seen.leaking


def test_a_leak_under_noise_is_found() -> None:
    chance = random.Random(2)
    steps = [float(i) for i in range(40)]
    seen = growth(steps, [5e8 + MB * i + chance.uniform(0, 6e6) for i in steps], least_bytes=LEAST_FOOTPRINT_BYTES)
    assert seen is not None
    assert seen.leaking
    assert seen.bytes_per_step == pytest.approx(MB, rel=0.2)


def test_growth_of_too_little_is_unknown() -> None:
    assert growth([1.0, 2.0], [1.0, 2.0], least_bytes=1) is None
    assert growth([5.0] * 10, [1.0] * 10, least_bytes=1) is None
