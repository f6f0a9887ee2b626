"""Is B faster than A, or is it noise? Pure functions on the block times of each process, derived when shown.

The processes are the sample, not their blocks: blocks of one process share its memory layout, its clock and its
luck, so a thousand of them say nothing of the next process. Times are positive and noise is a factor, so all of it
is done on logarithms. `benchmarks/compare_errors.py` counts how often the verdicts are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from metalmark.stats.summary import median, t95

BAND = 0.02
"""The least noise band: two sweeps of one thing differ by so much on a machine that nobody touched."""
SAME = 1.5
"""A whole interval inside so many least bands is called the same."""
TRIM = 0.2
"""Of a process's blocks, sorted, so many at each end do not count: outliers, at little cost where there are none."""
ENOUGH = 5
MOST_REPEATS = 1000
WIDEST = 300.0
"""Of half an interval of logarithms: what is wider is as useless, and no number can hold its ends."""


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    CANT_TELL = "can't tell"


class Difference(Struct, frozen=True, kw_only=True):
    """How B stands to A: `ratio` is A's time over B's, so that 1.05 is 5% faster."""

    ratio: float
    low: float | None
    """Of the 95% interval; None where a side has one process."""
    high: float | None
    band: float | None
    """The noise band, as a share: a ratio nearer to 1 than this is noise as far as these processes show."""
    verdict: Verdict
    repeats: tuple[int, int]
    more_repeats: int | None = None
    """About so many more processes a side would tell, if the noise stays as it is."""
    reason: str = ""
    """Why it can't tell."""


class Estimate(NamedTuple):
    """A difference of logarithms, and the variances of the means it is made of, each with its count."""

    value: float
    parts: tuple[tuple[float, int], ...]

    @property
    def half(self) -> float:
        """Half of the 95% interval."""
        variance = sum(part for part, _ in self.parts)
        return min(t95(_degrees(self.parts)) * math.sqrt(variance), WIDEST)

    def repeated(self, count: int) -> Estimate:
        """With `count` processes a side that scatter as these do."""
        return Estimate(self.value, tuple((part * held / count, count) for part, held in self.parts))


def middle(times: Sequence[float]) -> float:
    """Where a process's blocks lie: the geometric mean of those between the fastest and the slowest fifth."""
    cut = int(len(times) * TRIM)
    kept = sorted(times)[cut : len(times) - cut] if cut else [median(times)]
    return math.exp(sum(math.log(value) for value in kept) / len(kept))


def typical(processes: Sequence[Sequence[float]]) -> float:
    """Of several processes: the geometric mean of their middles."""
    return math.exp(_mean([math.log(middle(times)) for times in processes]))


def difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, band: float = BAND) -> Difference:
    """Of two sides, each a list of processes, each a list of times."""
    counts = len(a), len(b)
    if min(counts) < 2:
        few = "one process a side shows" if max(counts) < 2 else "one process on a side shows"
        reason = f"{few} nothing of how processes differ"
        return Difference(ratio=typical(a) / typical(b), low=None, high=None, band=None, verdict=Verdict.CANT_TELL,
                          repeats=counts, more_repeats=ENOUGH - min(counts), reason=reason)  # fmt: skip
    return _judge(_estimate(a, b), counts, band)


def geometric_mean(
    pairs: Sequence[tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]], *, band: float = BAND
) -> Difference | None:
    """Over cells; of these cells, not of all there could be. None where any side has one process, or none is there."""
    if not pairs or min(len(side) for pair in pairs for side in pair) < 2:
        return None
    estimates = [_estimate(a, b) for a, b in pairs]
    count = len(estimates)
    parts = tuple((part / count**2, held) for estimate in estimates for part, held in estimate.parts)
    least = min(len(a) for a, _ in pairs), min(len(b) for _, b in pairs)
    return _judge(Estimate(_mean([estimate.value for estimate in estimates]), parts), least, band)


def _estimate(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Estimate:
    logs = [[math.log(middle(times)) for times in side] for side in (a, b)]
    return Estimate(_mean(logs[0]) - _mean(logs[1]), tuple((_variance(side) / len(side), len(side)) for side in logs))


def _judge(found: Estimate, counts: tuple[int, int], band: float) -> Difference:
    half, least, most = found.half, math.log1p(band), SAME * math.log1p(band)
    size = abs(found.value)
    verdict, more, reason = Verdict.CANT_TELL, None, ""
    if size > max(half, least):
        verdict = Verdict.FASTER if found.value > 0 else Verdict.SLOWER
    elif size + half <= most:
        verdict = Verdict.SAME
    else:
        wanted = size if size > least else most - size
        more = _more_repeats(found, wanted)
        reason = f"{size_words(size)} lies inside the noise band of {size_words(max(half, least))}"
    return Difference(ratio=math.exp(found.value), low=math.exp(found.value - half), high=math.exp(found.value + half),
                      band=math.expm1(max(half, least)), verdict=verdict, repeats=counts, more_repeats=more,
                      reason=reason)  # fmt: skip


def _more_repeats(found: Estimate, wanted: float) -> int | None:
    """None: more than MOST_REPEATS."""
    held = min(count for _, count in found.parts)
    low, high = held, held + MOST_REPEATS
    if found.repeated(high).half > wanted:
        return None
    while high - low > 1:
        count = (low + high) // 2
        low, high = (low, count) if found.repeated(count).half <= wanted else (count, high)
    return high - held


def _degrees(parts: Sequence[tuple[float, int]]) -> float:
    """Welch's degrees of freedom, by his estimate of 1947, which is not biased downwards as the usual one is.

    With fewer than five processes it is too hopeful where one side is much noisier, so the usual one stands there.
    """
    least, most = min(count for _, count in parts) - 1, sum(count - 1 for _, count in parts)
    total = sum(part for part, _ in parts)
    if total <= 0:
        return float(most)
    if least + 1 < ENOUGH:
        return float(total**2 / sum(part**2 / (count - 1) for part, count in parts))
    found = total**2 / sum(part**2 / (count + 1) for part, count in parts) - 2
    return float(min(max(found, least), most))


def size_words(log_size: float) -> str:
    """As a share, or as a factor where a share is past imagining."""
    share = math.expm1(log_size)
    return f"{share * 100:.1f}%" if share < 1 else f"{share + 1:.1f}x"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
