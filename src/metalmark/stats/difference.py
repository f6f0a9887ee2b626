"""Is B faster than A, or better, or is it noise? Pure functions on the figures of each run, derived when shown.

Runs are the sample (the processes of a bench cell, the seeds of a training), not what was read inside of each: blocks
of one process share its memory layout, its clock and its luck, so a thousand of them say nothing about the next
process. Times are positive and their noise is a factor, so they are compared by their logarithms (`difference`);
shares, such as an accuracy, are compared as they are (`gap`). `benchmarks/compare_errors.py` counts how often the
verdicts are wrong.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from metalmark.stats.summary import median, t95

BAND = 0.02
"""The smallest noise band of a ratio: two sweeps of one thing differ by this much on a machine that nobody touched."""
SHARE_BAND = 0.002
"""The smallest noise band of a share, such as an accuracy: 0.2 percentage points."""
SAME = 1.5
"""Two sides are the same when the whole interval lies within this many smallest noise bands."""
DISTURBED = 0.05
SPREADS = 5.0
"""A process is disturbed when its median lies further above its own fastest quarter than those of other processes: by
this share, and by so many times the spread among them."""
NORMAL = 1.4826
"""The standard deviation of normal noise over its median distance from the median."""
ENOUGH = 5
MOST_REPEATS = 1000
WIDEST = 300.0
"""Limit of half an interval of logarithms: anything wider is as useless, and no number can hold its ends."""


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CANT_TELL = "can't tell"


class Judged(Struct, frozen=True, kw_only=True):
    """How sure a difference of two sides is."""

    low: float | None = None
    """Lower end of the 95% interval; None where a side has one run."""
    high: float | None = None
    band: float | None = None
    """The noise band: a smaller difference is noise as far as these runs show."""
    verdict: Verdict = Verdict.CANT_TELL
    repeats: tuple[int, int]
    more_repeats: int | None = None
    """About how many more runs per side would tell, if the noise stays as it is."""
    reason: str = ""
    """Why it can't tell."""


class Difference(Judged, frozen=True, kw_only=True):
    """How B compares with A: `ratio` is A's time over B's, so that 1.05 is 5% faster; `band` is a share."""

    ratio: float
    disturbed: tuple[int, int] = (0, 0)
    """Processes of each side of which something else slowed a part: they count by their other blocks."""


class Gap(Judged, frozen=True, kw_only=True):
    """How far B's share (an accuracy, a share of time) lies above A's: 0.01 is one percentage point."""

    value: float


class Estimate(NamedTuple):
    """A difference of two means, and the variance of each mean with the number of runs it comes from."""

    value: float
    parts: tuple[tuple[float, int], ...]
    disturbed: tuple[int, int] = (0, 0)

    @property
    def half(self) -> float:
        """Half of the 95% interval."""
        variance = sum(part for part, _ in self.parts)
        return min(t95(_degrees(self.parts)) * math.sqrt(variance), WIDEST)

    def repeated(self, count: int) -> "Estimate":
        """The same estimate with `count` runs per side that scatter as these do."""
        return Estimate(self.value, tuple((part * held / count, count) for part, held in self.parts))


def typical(processes: Sequence[Sequence[float]]) -> float:
    """The one figure of a cell, in every table and in `compare`: the geometric mean of the processes' medians."""
    if len(processes) == 1:
        return median(processes[0])
    return math.exp(_mean([math.log(median(times)) for times in processes]))


def difference(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, band: float = BAND, sample: str = "process"
) -> Difference:
    """Compare two sides, each a list of processes, each a list of times. `sample`: what a reader calls a process."""
    counts = len(a), len(b)
    if min(counts) < 2:
        few = _too_few(counts, sample)
        return Difference(ratio=typical(a) / typical(b), repeats=counts, more_repeats=ENOUGH - min(counts), reason=few)
    return _difference(_log_estimate(a, b), counts, band)


def geometric_mean(
    pairs: Sequence[tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]], *, band: float = BAND
) -> Difference | None:
    """The mean ratio over cells: over these cells, not over all there could be. None where any side has one process,
    or where there is no cell."""
    if not pairs or min(len(side) for pair in pairs for side in pair) < 2:
        return None
    estimates = [_log_estimate(a, b) for a, b in pairs]
    count = len(estimates)
    parts = tuple((part / count**2, held) for estimate in estimates for part, held in estimate.parts)
    least = min(len(a) for a, _ in pairs), min(len(b) for _, b in pairs)
    return _difference(Estimate(_mean([estimate.value for estimate in estimates]), parts), least, band)


def gap(
    a: Sequence[float], b: Sequence[float], *, band: float = SHARE_BAND, less_is_better: bool = False,
    paired: bool = False, sample: str = "run", words: Callable[[float], str] = lambda size: f"{size * 100:.2f} points",
) -> Gap:  # fmt: skip
    """Compare two sides, each a list of shares, one per run. `paired`: the first of A belongs to the first of B, and so
    on, because something that scatters from run to run was the same for both. `words` says how large a gap is."""
    counts = len(a), len(b)
    value = _mean(b) - _mean(a)
    if min(counts) < 2:
        few = _too_few(counts, sample)
        return Gap(value=value, repeats=counts, more_repeats=ENOUGH - min(counts), reason=few)
    changes = [theirs - ours for ours, theirs in zip(a, b, strict=True)] if paired else []
    estimate = Estimate(value, ((_variance(changes) / len(changes), len(changes)),)) if paired else _estimate(b, a)
    above, below = (Verdict.WORSE, Verdict.BETTER) if less_is_better else (Verdict.BETTER, Verdict.WORSE)
    verdict, more, reason = _judge(estimate, band, above, below, words)
    half = estimate.half
    return Gap(
        value=value, low=value - half, high=value + half, band=max(half, band), verdict=verdict, repeats=counts,
        more_repeats=more, reason=reason,
    )  # fmt: skip


def _difference(found: Estimate, counts: tuple[int, int], band: float) -> Difference:
    least, half = math.log1p(band), found.half
    verdict, more, reason = _judge(found, least, Verdict.FASTER, Verdict.SLOWER, size_words)
    return Difference(
        ratio=math.exp(found.value), low=math.exp(found.value - half), high=math.exp(found.value + half),
        band=math.expm1(max(half, least)), verdict=verdict, repeats=counts, more_repeats=more, reason=reason,
        disturbed=found.disturbed,
    )  # fmt: skip


def _judge(
    found: Estimate, least: float, above: Verdict, below: Verdict, words: Callable[[float], str]
) -> tuple[Verdict, int | None, str]:
    """Return the verdict; where it can't be told, also how many more repeats would tell, and why."""
    half, most, size = found.half, SAME * least, abs(found.value)
    if size > max(half, least):
        return above if found.value > 0 else below, None, ""
    if size + half <= most:
        return Verdict.SAME, None, ""
    wanted = size if size > least else most - size
    reason = f"{words(size)} lies inside the noise band of {words(max(half, least))}"
    return Verdict.CANT_TELL, _more_repeats(found, wanted), reason


def _log_estimate(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Estimate:
    """Compare the processes' medians, without what something else on the machine added to a part of a process.

    Where that is so in half of a side's processes or more, the thing itself is slow at times, and all count whole.
    """
    sides = [[sorted(times) for times in side] for side in (a, b)]
    above = [[math.log(median(times) / _quarter(times)) for times in side] for side in sides]
    every = [value for side in above for value in side]
    usual = median(every)
    limit = usual + max(DISTURBED, SPREADS * NORMAL * median([abs(value - usual) for value in every]))
    counts = [sum(value > limit for value in side) for side in above]
    if any(2 * count >= len(side) for count, side in zip(counts, sides, strict=True)):
        limit, counts = math.inf, [0, 0]
    near = math.exp(min(SPREADS * usual, WIDEST))
    medians = [
        [
            math.log(median([time for time in times if time <= _quarter(times) * near] if value > limit else times))
            for times, value in zip(side, far, strict=True)
        ]
        for side, far in zip(sides, above, strict=True)
    ]
    found = _estimate(*medians)
    # A process that had to be mended is no evidence of how processes scatter.
    parts = tuple((part, max(2, held - count)) for (part, held), count in zip(found.parts, counts, strict=True))
    return Estimate(found.value, parts, (counts[0], counts[1]))


def _quarter(ordered: Sequence[float]) -> float:
    """Return the value below which a quarter of them lie."""
    place = (len(ordered) - 1) / 4
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _estimate(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """How far A's mean lies above B's."""
    return Estimate(_mean(a) - _mean(b), tuple((_variance(side) / len(side), len(side)) for side in (a, b)))


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

    With fewer than five processes it is too hopeful where one side is much noisier, so the usual one is used there.
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
    """A difference of logarithms as a percentage, or as a factor where a percentage is past imagining."""
    share = math.expm1(log_size)
    return f"{share * 100:.1f}%" if share < 1 else f"{share + 1:.1f}x"


def _too_few(counts: tuple[int, int], sample: str) -> str:
    where = "per side" if max(counts) < 2 else "on a side"
    plural = f"{sample}es" if sample.endswith("s") else f"{sample}s"
    return f"one {sample} {where} does not show how {plural} differ"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
