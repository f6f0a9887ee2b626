"""The energy used in a window of time, from sampled series: by a counter where there is one, else by the power."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from metalmark.model.run import Absent, Series
from metalmark.telemetry.base import MODELLED

COUNTER, TRAPEZOID = "counter", "trapezoid"
LEAST_INSIDE = 3
LEAST_COVERED = 0.95
LARGEST_GAP = 0.35
"""Largest share of the window between two readings: over a longer gap, power may have been anything."""


class Energy(Struct, frozen=True, kw_only=True):
    joules: float
    series: str
    source: str
    method: str
    """"counter", or "trapezoid" over the power."""

    @property
    def modelled(self) -> bool:
        """Whether it is an estimate of the hardware or the system rather than a meter's reading."""
        return self.source.endswith(MODELLED)


def energy_of(part: str, series: Iterable[Series], begin_s: float, end_s: float) -> Energy | Absent:
    """Return what `part` ("gpu0", "cpu", "system" ...) used between two moments of the series' clock."""
    found = {one.name: one for one in series if one.name in (f"{part}_energy", f"{part}_power")}
    reasons: list[str] = []
    for name, method in ((f"{part}_energy", COUNTER), (f"{part}_power", TRAPEZOID)):
        if name in found:
            energy = energy_by(found[name], method, begin_s, end_s)
            if isinstance(energy, Energy):
                return energy
            reasons.append(f"{name}: {energy.reason}")
    return Absent("; ".join(reasons) or f"nothing here gives the energy or the power of {part}")


def parts_of(series: Iterable[Series]) -> tuple[str, ...]:
    """Return the parts that have a counter or a power among these series."""
    names = (one.name for one in series)
    parts = (name.removesuffix(end) for name in names for end in ("_energy", "_power") if name.endswith(end))
    return tuple(dict.fromkeys(parts))


def energy_by(series: Series, method: str, begin_s: float, end_s: float) -> Energy | Absent:
    ends = _covered(series, begin_s, end_s)
    if isinstance(ends, Absent):
        return ends
    measure = _by_counter if method == COUNTER else _by_power
    joules = measure(series, *ends, end_s - begin_s)
    if isinstance(joules, Absent):
        return joules
    # The little that lies beyond the readings is assumed to be like the rest.
    whole = joules * (end_s - begin_s) / (ends[1] - ends[0])
    return Energy(joules=whole, series=series.name, source=series.source, method=method)


def _by_counter(series: Series, first_s: float, last_s: float, _: float) -> float | Absent:
    """Subtract two readings of a counter of joules, interpolated where an end of the window lies between readings."""
    used = _at(series, last_s) - _at(series, first_s)
    return used if used > 0 else Absent("the counter did not move")


def _by_power(series: Series, first_s: float, last_s: float, window_s: float) -> float | Absent:
    """Integrate watts along straight lines from reading to reading."""
    first, last = bisect_right(series.at_s, first_s), bisect_left(series.at_s, last_s)
    at_s = (first_s, *series.at_s[first:last], last_s)
    watts = (_at(series, first_s), *series.values[first:last], _at(series, last_s))
    spans_s = [after - before for before, after in pairwise(at_s)]
    if max(spans_s) > LARGEST_GAP * window_s:
        return Absent(f"no reading for {max(spans_s):.1f} s of the {window_s:.1f} s")
    return sum(span * (a + b) / 2 for span, (a, b) in zip(spans_s, pairwise(watts), strict=True))


def _covered(series: Series, begin_s: float, end_s: float) -> tuple[float, float] | Absent:
    """Return the part of the window that lies between readings."""
    if not end_s > begin_s:
        return Absent("the window is empty")
    inside = bisect_right(series.at_s, end_s) - bisect_left(series.at_s, begin_s)
    if inside < LEAST_INSIDE:
        return Absent(f"too few readings: {inside} in the {end_s - begin_s:.1f} s")
    begin, end = max(begin_s, series.at_s[0]), min(end_s, series.at_s[-1])
    share = (end - begin) / (end_s - begin_s)
    if share < LEAST_COVERED:
        return Absent(f"the readings cover {share * 100:.0f}% of the {end_s - begin_s:.1f} s")
    return begin, end


def _at(series: Series, moment_s: float) -> float:
    """Return the value at a moment between the first reading and the last, along a straight line."""
    after = bisect_left(series.at_s, moment_s)
    if series.at_s[after] == moment_s:
        return series.values[after]
    span_s = series.at_s[after] - series.at_s[after - 1]
    share = (moment_s - series.at_s[after - 1]) / span_s
    return series.values[after - 1] + share * (series.values[after] - series.values[after - 1])
