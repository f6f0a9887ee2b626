"""Whether a run slows down and whether memory grows: robust lines through noisy series, computed when shown."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from metalmark.stats.summary import median

MOST_POINTS = 60
"""Longer series are cut into this many equal parts, each replaced by its median: pairs stay few, and brief noise
averages out."""
FEWEST_POINTS = 8
Z_99 = 2.576
FAR = 7.0
"""This many standard errors are not noise, however long it lasts: see `drift`."""
SMALLEST_CHANGE = 0.03
"""A line that rises by less than this over the run moves the median by under 1.5%, which spoils nothing."""
FAINTEST_NOISE = 1e-3

LEAST_COUNTED_BYTES = 1 << 20
LEAST_FOOTPRINT_BYTES = 8 << 20
LEAST_FOOTPRINT_SHARE = 0.01
"""What a process holds varies by megabytes, as its allocators decide; a device's own counter does not."""
GOES_ON = 1 / 3
ABOVE_SCATTER = 3.0
"""Memory that is collected now and then rises and falls like a saw, and its line may rise a little, depending on where
the saw ends."""


class Drift(NamedTuple):
    """How a series of step times changes from the beginning of a run to its end."""

    ratio_last_tenth_to_first: float
    slope_share: float
    """The robust line's change over the run relative to where it begins: 0.2 is 20% slower at the end."""
    significant: bool


class TrendLine(NamedTuple):
    """Theil and Sen's line: the median of the slopes between all pairs, which a quarter of wild points can't bend."""

    slope: float
    begin: float
    """The line's height at the first point."""


class Growth(NamedTuple):
    """How memory changes over the measured window."""

    bytes_per_step: float
    total_bytes: float
    leaking: bool
    """It grew by more than noise, and in both halves of the window: a cache that fills stops, a leak goes on."""


def drift(times: Sequence[float]) -> Drift | None:
    """The drift of step times in the order they were measured, or None where there are too few to tell.

    Significant by Mann and Kendall's rank test at 1%, its variance widened for noise that lasts from one block to
    the next. A sudden jump leaves residuals that look like such noise and would hide behind that correction: what
    lies FAR outside the block-to-block noise counts all the same.
    """
    points = condense(times)
    if len(points) < FEWEST_POINTS:
        return None
    line = theil_sen(range(len(points)), points)
    change = line.slope * (len(points) - 1)
    residuals = [value - line.begin - line.slope * index for index, value in enumerate(points)]
    z = mann_kendall(points)
    lasting = autocorrelation(residuals)
    trend = z / math.sqrt((1 + lasting) / (1 - lasting)) > Z_99
    jump = abs(change) > FAR * _standard_error(points)
    share = change / line.begin if line.begin > 0 else 0.0
    tenth = math.ceil(len(times) / 10)
    ratio = median(times[-tenth:]) / median(times[:tenth])
    return Drift(ratio, share, (trend or jump) and abs(share) >= SMALLEST_CHANGE)


def growth(steps: Sequence[float], held_bytes: Sequence[float], *, least_bytes: float) -> Growth | None:
    """The growth of the memory that was held after each of these numbers of steps, or None for too few points.

    `least_bytes`: what it must have grown by over the window to count; LEAST_COUNTED_BYTES for a device's counter.
    """
    at, held = condense(steps), condense(held_bytes)
    if len(held) < FEWEST_POINTS or at[-1] <= at[0]:
        return None
    middle = len(held) // 2
    slope, begin = theil_sen(at, held)
    scatter = median([abs(value - begin - slope * (place - at[0])) for place, value in zip(at, held, strict=True)])
    halves = theil_sen(at[:middle], held[:middle]).slope, theil_sen(at[middle:], held[middle:]).slope
    total = slope * (at[-1] - at[0])
    leaking = total >= max(least_bytes, ABOVE_SCATTER * scatter) and min(halves) >= GOES_ON * slope
    return Growth(slope, total, leaking)


def condense(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """At most `most` points: the medians of equal parts of the series."""
    count = len(values)
    if count <= most:
        return list(values)
    edges = [count * index // most for index in range(most + 1)]
    return [median(values[begin:end]) for begin, end in pairwise(edges)]


def theil_sen(at: Sequence[float], values: Sequence[float]) -> TrendLine:
    pairs = [(i, j) for j in range(len(values)) for i in range(j) if at[j] > at[i]]
    slopes = [(values[j] - values[i]) / (at[j] - at[i]) for i, j in pairs]
    slope = median(slopes) if slopes else 0.0
    begin = median([value - slope * (place - at[0]) for place, value in zip(at, values, strict=True)])
    return TrendLine(slope, begin)


def mann_kendall(values: Sequence[float]) -> float:
    """How many standard deviations the number of rises minus falls over all pairs lies from 0, without its sign."""
    rises = sum((b > a) - (b < a) for index, b in enumerate(values) for a in values[:index])
    every, *ties = (count * (count - 1) * (2 * count + 5) for count in (len(values), *Counter(values).values()))
    variance = (every - sum(ties)) / 18
    return max(abs(rises) - 1, 0) / math.sqrt(variance) if variance > 0 else 0.0


def autocorrelation(residuals: Sequence[float]) -> float:
    """Autocorrelation of neighbours, from 0 to 0.9, corrected for what removing a line from few points takes away."""
    power = sum(value * value for value in residuals)
    if power <= 0:
        return 0.0
    found = sum(a * b for a, b in pairwise(residuals)) / power
    lifted = found + (1 + 4 * max(found, 0.0)) / len(residuals)
    return min(max(lifted, 0.0), 0.9)


def _standard_error(points: Sequence[float]) -> float:
    """The standard error of a fitted line's change over the points, from the noise between neighbours, which no trend
    or jump widens."""
    steps = [b - a for a, b in pairwise(points)]
    middle = median(steps)
    noise = 1.4826 * median([abs(step - middle) for step in steps]) / math.sqrt(2)
    return max(noise, FAINTEST_NOISE * median(points)) * math.sqrt(12 / len(points))
