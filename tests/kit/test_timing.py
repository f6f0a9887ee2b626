"""The stopwatch and `measure`, on plain Python: what frameworks add is tested with theirs."""

from __future__ import annotations

import math

import pytest

import metalmark as mm
from metalmark.errors import UsageError, WrongResultError


def test_a_lap_that_raised_is_none() -> None:
    watch = mm.Stopwatch()
    with pytest.raises(UsageError, match="nothing yet"):
        watch.elapsed_s  # noqa: B018
    with pytest.raises(ZeroDivisionError), watch:
        1 / 0  # noqa: B018
    assert watch.laps_s == []
    for _ in range(2):
        with watch:
            pass
    assert len(watch.laps_s) == 2
    assert watch.elapsed_s == watch.laps_s[-1]


def test_measure_keeps_the_first_step_apart() -> None:
    calls: list[int] = []

    def step() -> float:
        calls.append(1)
        return 0.5

    timing = mm.measure(step, steps=30, min_blocks=10)
    assert sum(block.steps for block in timing.blocks) == 30
    assert len(calls) == 31 + sum(block.steps for block in timing.warmup)
    assert {block.proof for block in timing.blocks} == {0.5}
    assert timing.interval is not None
    assert timing.interval.low <= timing.median_s <= timing.interval.high
    assert timing.first_step_s > 0
    assert "blocks, first step" in str(timing)


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(WrongResultError, match="nan"):
        mm.measure(lambda: math.nan, steps=10)
    with pytest.raises(UsageError):
        mm.measure(lambda: None, steps=0)
