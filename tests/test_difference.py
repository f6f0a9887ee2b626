"""Verdicts on known truths; how often they are wrong under noise is counted by benchmarks/compare_errors.py."""

from __future__ import annotations

import math
import random

import pytest

from metalmark.stats.difference import ENOUGH, Verdict, difference, geometric_mean, typical
from metalmark.stats.summary import t95

QUIET = [0.998, 1.0, 1.002, 0.999, 1.001]
LOUD = [0.9, 1.0, 1.1, 0.95, 1.05]


def side(factors: list[float], scale: float = 1.0, blocks: int = 12) -> list[list[float]]:
    """A process a factor, all its blocks alike."""
    return [[scale * factor] * blocks for factor in factors]


def test_faster_slower_same_cant_tell() -> None:
    faster, slower = difference(side(QUIET), side(QUIET, 0.8)), difference(side(QUIET), side(QUIET, 1.25))
    assert faster.verdict is Verdict.FASTER
    assert faster.ratio == pytest.approx(1.25)
    assert slower.verdict is Verdict.SLOWER
    assert slower.ratio == pytest.approx(0.8)
    assert faster.low is not None
    assert faster.high is not None
    assert faster.low < 1.25 < faster.high
    assert difference(side(QUIET), side(QUIET, 1.001)).verdict is Verdict.SAME
    unsure = difference(side(LOUD), side(LOUD, 1.03))
    assert unsure.verdict is Verdict.CANT_TELL
    assert "noise band" in unsure.reason
    assert unsure.more_repeats is not None
    assert unsure.more_repeats > 0


def test_the_two_sides_are_treated_alike() -> None:
    there, back = difference(side(QUIET), side(LOUD, 1.3)), difference(side(LOUD, 1.3), side(QUIET))
    assert there.low is not None
    assert back.high is not None
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)


def test_the_processes_are_the_sample_and_not_their_blocks() -> None:
    """Ten times the blocks in each process tell nothing more of how processes differ."""
    few, many = (difference(side(LOUD, blocks=n), side(LOUD, 1.1, blocks=n)) for n in (10, 100))
    assert few.low == pytest.approx(many.low)
    assert few.verdict is many.verdict is Verdict.CANT_TELL
    pooled = difference(side(LOUD * 10), side(LOUD * 10, 1.1))
    assert pooled.verdict is Verdict.SLOWER, "as many processes would"


@pytest.mark.parametrize("counts", [(1, 1), (1, 5), (5, 1)])
def test_one_process_tells_nothing(counts: tuple[int, int]) -> None:
    found = difference(side(QUIET[: counts[0]]), side(QUIET[: counts[1]], 2.0))
    assert found.verdict is Verdict.CANT_TELL
    assert found.low is None
    assert found.band is None
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert "one process" in found.reason
    assert found.more_repeats == ENOUGH - 1


def test_a_difference_below_the_least_band_is_never_called_one() -> None:
    steady = [1.0] * 5
    assert difference(side(steady), side(steady, 0.985)).verdict is Verdict.SAME
    assert difference(side(steady), side(steady, 0.985), band=0.01).verdict is Verdict.FASTER


def test_the_repeats_it_asks_for_would_tell() -> None:
    """Such processes, repeated as often, lie outside of their own noise band."""
    unsure = difference(side(LOUD), side(LOUD, 1.06))
    assert unsure.more_repeats is not None
    rounds = math.ceil((5 + unsure.more_repeats) / 5)
    assert difference(side(LOUD * rounds), side(LOUD * rounds, 1.06)).verdict is Verdict.SLOWER
    assert difference(side(LOUD * (rounds // 2)), side(LOUD * (rounds // 2), 1.06)).verdict is Verdict.CANT_TELL


def test_wild_processes_are_no_error() -> None:
    wild = difference([[1e-9], [1e9]], [[1e9], [1e-9]])
    assert wild.verdict is Verdict.CANT_TELL
    assert wild.high is not None
    assert math.isfinite(wild.high)


def test_outliers_do_not_move_a_process() -> None:
    blocks = [1.0] * 18 + [30.0, 40.0]
    assert typical([blocks]) == 1.0
    assert typical([[1.0, 2.0, 90.0]]) == 2.0
    assert typical([[1.0] * 5, [4.0] * 5]) == pytest.approx(2.0)


def test_the_geometric_mean_over_cells() -> None:
    cells = [(side(QUIET), side(QUIET, 0.5)), (side(QUIET), side(QUIET, 2.0))]
    both = geometric_mean(cells)
    assert both is not None
    assert both.ratio == pytest.approx(1.0)
    assert both.verdict is Verdict.SAME
    one, alone = geometric_mean(cells[:1]), difference(*cells[0])
    assert one is not None
    assert (one.low, one.high) == pytest.approx((alone.low, alone.high))
    assert geometric_mean([]) is None
    assert geometric_mean([*cells, (side(QUIET[:1]), side(QUIET))]) is None


@pytest.mark.parametrize(("repeats", "noisier"), [(2, 1.0), (3, 1.0), (5, 1.0), (5, 4.0), (10, 2.0)])
def test_intervals_cover_the_truth(repeats: int, noisier: float) -> None:
    """2,000 seeded draws a case: within 92 and 98.5% of them; few processes are covered more often, never less."""
    drawn = random.Random(f"{repeats}/{noisier}")

    def processes(sd: float) -> list[list[float]]:
        return [[math.exp(drawn.gauss(0, sd))] for _ in range(repeats)]

    hits = 0
    for _ in range(2000):
        found = difference(processes(0.02), processes(0.02 * noisier))
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1 <= found.high
    assert 0.92 <= hits / 2000 <= 0.985


def test_students_t_between_whole_degrees() -> None:
    assert t95(4) == 2.776
    assert t95(5) < t95(4.5) < t95(4)
    assert t95(4.5) == pytest.approx(2.66, abs=0.01)
    assert t95(29.9) == pytest.approx(t95(30.1), abs=0.01)
    assert t95(1e6) == pytest.approx(1.96, abs=1e-4)


def spiky(slowed: int, scale: float = 1.0, processes: int = 6) -> list[list[float]]:
    """Processes whose blocks scatter by 1%; of the first `slowed` of them every second block takes 40% longer."""
    noise = random.Random(processes)
    blocks = [[scale * noise.gauss(1.0, 0.01) for _ in range(40)] for _ in range(processes)]
    return [
        [time * (1.4 if number < slowed and place % 2 else 1.0) for place, time in enumerate(times)]
        for number, times in enumerate(blocks)
    ]


def test_a_process_that_something_else_slowed_in_part_counts_by_its_other_blocks() -> None:
    for a, b in ((1, 0), (0, 2), (2, 1)):
        found = difference(spiky(a), spiky(b, 1.05))
        assert found.verdict is Verdict.SLOWER, "5% is found as if nothing had been there"
        assert found.ratio == pytest.approx(1 / 1.05, rel=0.01)
        assert found.disturbed == (a, b)
    alike = difference(spiky(2), spiky(0))
    assert alike.verdict is Verdict.SAME
    assert difference(spiky(0), spiky(0, 1.05)).disturbed == (0, 0)


def test_what_is_slow_at_times_in_most_processes_is_slow() -> None:
    found = difference(spiky(0), spiky(4))
    assert found.disturbed == (0, 0)
    assert found.ratio < 0.95
    every = difference(spiky(0), spiky(6))
    assert every.verdict is Verdict.SLOWER
    assert every.disturbed == (0, 0)
