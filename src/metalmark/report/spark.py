"""A line of small bars: how a quantity went, in as many characters as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
FLAT_SHARE = 0.01


def spark(values: Sequence[float], width: int, *, scale: tuple[float, float] | None = None) -> str:
    """The oldest on the left. More values than characters: each shows the mean of its share, so that none is hidden.
    `scale`: the lowest and the highest of several lines that are to be compared."""
    shown = _means(values, width)
    if not shown:
        return ""
    low, high = scale or (min(shown), max(shown))
    if high - low <= FLAT_SHARE * max(abs(high), abs(low)):
        # A quantity that stands still must not look like one that jumps.
        return BARS[3] * len(shown)
    top = len(BARS) - 1
    return "".join(BARS[round((value - low) / (high - low) * top)] for value in shown)


def _means(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [number * count // width for number in range(width + 1)]
    parts = (values[begin:end] for begin, end in pairwise(edges))
    return [sum(part) / len(part) for part in parts]
