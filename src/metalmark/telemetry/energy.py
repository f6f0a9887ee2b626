"""The energy used in a window of time, from sampled series: by a counter where there is one, else by the power."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from metalmark.model.run import Absent, Series
from metalmark.telemetry.base import MODELLED

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
    for name, method in ((f"{part}_energy", by_counter), (f"{part}_power", by_power)):
        if name in found:
            energy = method(found[name], begin_s, end_s)
            if isinstance(energy, Energy):
                return energy
            reasons.append(f"{name}: {energy.reason}")
    return Absent("; ".join(reasons) or f"nothing here gives the energy or the power of {part}")


def parts_of(series: Iterable[Series]) -> tuple[str, ...]:
    """Return the parts that have a counter or a power among these series."""
    names = (one.name for one in series)
    parts = (name.removesuffix(end) for name in names for end in ("_energy", "_power") if name.endswith(end))
    return tuple(dict.fromkeys(parts))


def by_counter(series: Series, begin_s: float, end_s: float) -> Energy | Absent:
    """Subtract two readings of a counter of joules, interpolated where an end of the window lies between readings."""
    ends = _covered(series, begin_s, end_s)
    if isinstance(ends, Absent):
        return ends
    used = _at(series, ends[1]) - _at(series, ends[0])
    if used <= 0:
        return Absent("the counter did not move")
    return _energy(used, series, "counter", ends, begin_s, end_s)


def by_power(series: Series, begin_s: float, end_s: float) -> Energy | Absent:
    """Integrate watts along straight lines from reading to reading."""
    ends = _covered(series, begin_s, end_s)
    if isinstance(ends, Absent):
        return ends
    first, last = bisect_right(series.at_s, ends[0]), bisect_left(series.at_s, ends[1])
    at_s = (ends[0], *series.at_s[first:last], ends[1])
    watts = (_at(series, ends[0]), *series.values[first:last], _at(series, ends[1]))
    spans_s = [after - before for before, after in pairwise(at_s)]
    if max(spans_s) > LARGEST_GAP * (end_s - begin_s):
        return Absent(f"no reading for {max(spans_s):.1f} s of the {end_s - begin_s:.1f} s")
    used = sum(span * (a + b) / 2 for span, (a, b) in zip(spans_s, pairwise(watts), strict=True))
    return _energy(used, series, "trapezoid", ends, begin_s, end_s)


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


def _energy(
    joules: float, series: Series, method: str, ends: tuple[float, float], begin_s: float, end_s: float
) -> Energy:
    # The little that lies beyond the readings is assumed to be like the rest.
    whole = joules * (end_s - begin_s) / (ends[1] - ends[0])
    return Energy(joules=whole, series=series.name, source=series.source, method=method)


def _at(series: Series, moment_s: float) -> float:
    """Return the value at a moment between the first reading and the last, along a straight line."""
    after = bisect_left(series.at_s, moment_s)
    if series.at_s[after] == moment_s:
        return series.values[after]
    span_s = series.at_s[after] - series.at_s[after - 1]
    share = (moment_s - series.at_s[after - 1]) / span_s
    return series.values[after - 1] + share * (series.values[after] - series.values[after - 1])
