from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.results.cells import cells_of
from metalmark.stats.summary import mean_interval, median, median_interval, step_interval, t95
from tests.samples import completed, record

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


def test_throughput_is_one_steps_samples_over_one_steps_time() -> None:
    """140 constant steps of 0.1 s at batch 2 are 20 samples/s; dividing all samples by one step gives 2,800."""
    (cell,) = cells_of([record(completed(0.1, steps=10, blocks=14, samples=2))])
    assert cell.samples_s == pytest.approx(20.0)


@given(TIMES)
def test_median_has_half_on_each_side(values: list[float]) -> None:
    middle = median(values)
    assert sum(value < middle for value in values) <= len(values) / 2
    assert sum(value > middle for value in values) <= len(values) / 2


def test_median_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        median([])


@given(TIMES)
def test_interval_holds_the_median_or_is_absent(values: list[float]) -> None:
    interval = median_interval(values)
    assert (interval is None) == (len(values) < 6)
    if interval:
        assert interval.low <= median(values) <= interval.high


@pytest.mark.parametrize("count", [6, 10, 30, 200])
def test_interval_covers_the_true_median_in_95_of_100_runs(count: int) -> None:
    """Of a skewed distribution too: exponential noise has its median at ln 2."""
    draw = random.Random(count)
    runs = 2000
    hits = 0
    for _ in range(runs):
        interval = median_interval([draw.expovariate(1.0) for _ in range(count)])
        assert interval is not None
        hits += interval.low <= math.log(2) <= interval.high
    assert 0.935 <= hits / runs <= 0.99


def test_interval_of_many_values_uses_the_normal_approximation() -> None:
    exact, near = median_interval(list(range(1, 1000))), median_interval(list(range(1, 1001)))
    assert exact is not None
    assert near is not None
    assert near.low == pytest.approx(exact.low, abs=2)
    assert near.high == pytest.approx(exact.high, abs=2)


@pytest.mark.parametrize("processes", [3, 5])
def test_process_interval_covers_the_truth(processes: int) -> None:
    draw = random.Random(processes)
    runs, hits = 2000, 0
    for _ in range(runs):
        interval = mean_interval([math.exp(draw.gauss(0, 0.02)) for _ in range(processes)], "processes")
        assert interval is not None
        hits += interval.low <= 1.0 <= interval.high
    assert 0.93 <= hits / runs <= 0.97


def test_three_processes_are_the_sample_and_fewer_are_not() -> None:
    steady = [1.0] * 12
    assert step_interval([steady] * 2).over == "blocks of two processes"  # type: ignore[union-attr]
    wide = step_interval([[1.0] * 12, [1.1] * 12, [1.2] * 12])
    assert wide is not None
    assert wide.over == "3 processes"
    assert wide.half_share > 0.05, "processes that differ by 10% must show, however quiet each one is"


def test_t_falls_towards_the_normal() -> None:
    assert t95(1) == pytest.approx(12.706)
    assert t95(30) > t95(31) > t95(1000) > 1.96
