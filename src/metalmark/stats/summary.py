"""Medians and intervals: pure functions on sequences, computed when shown, never stored."""

import math
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95% points of Student's t for 1 to 30 degrees of freedom, then by the normal.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Interval(NamedTuple):
    """A 95% interval and what it is an interval over."""

    low: float
    high: float
    over: str

    @property
    def half_share(self) -> float:
        """Half the width relative to the middle: 0.03 is ± 3%."""
        return (self.high - self.low) / (self.high + self.low) if self.high + self.low > 0 else 0.0


def median(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("the median of nothing")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Sequence[float]) -> float:
    """The range of the values relative to their median."""
    return (max(values) - min(values)) / median(values)


def median_interval(values: Sequence[float], over: str = "blocks of one process") -> Interval | None:
    """A 95% interval of the median by order statistics, which assumes nothing about the distribution.

    None for fewer than six values: even their whole range covers the median in less than 95% of cases.
    """
    count = len(values)
    if count < 6:
        return None
    ordered = sorted(values)
    # The number below the median is binomial(n, 1/2); take ranks k and n+1-k with at most 2.5% in each tail.
    tail, rank, probability = 0.0, 0, 0.5**count if count < 1000 else 0.0
    if probability == 0.0:
        rank = max(1, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    else:
        while tail + probability <= 0.025:
            tail += probability
            rank += 1
            probability *= (count - rank + 1) / rank
    rank = max(rank, 1)
    return Interval(ordered[rank - 1], ordered[count - rank], over)


def mean_interval(values: Sequence[float], over: str) -> Interval | None:
    """Student's t interval of the mean, on the logarithm: times are positive and noise is a factor."""
    if (count := len(values)) < 2:
        return None
    logs = [math.log(value) for value in values]
    mean = sum(logs) / count
    variance = sum((value - mean) ** 2 for value in logs) / (count - 1)
    half = t95(count - 1) * math.sqrt(variance / count)
    return Interval(math.exp(mean - half), math.exp(mean + half), over)


def t95(degrees: float) -> float:
    """The two-sided 95% point of Student's t. Between whole degrees of freedom it is nearly linear in 1/degrees."""
    if degrees >= len(_T95):
        return 1.96 + 2.5 / degrees
    below = max(math.floor(degrees), 1)
    share = (1 / below - 1 / max(degrees, 1.0)) / (1 / below - 1 / (below + 1))
    return _T95[below - 1] + share * (_T95[below] - _T95[below - 1])


def step_interval(processes: Sequence[Sequence[float]]) -> Interval | None:
    """The interval of the step time of several processes, each a list of step times: over the processes when there are
    three or more, else over the blocks, which leaves out how processes differ and says so."""
    if len(processes) >= 3:
        return mean_interval([median(times) for times in processes], f"{len(processes)} processes")
    over = "blocks of one process" if len(processes) == 1 else "blocks of two processes"
    return median_interval([value for times in processes for value in times], over)
