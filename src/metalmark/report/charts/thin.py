"""Fewer points for a drawing: of each stretch that one or two pixels show, its least and its most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

MOST = 480
"""Points of one line: more than a figure of 392 pixels can show."""

Point = tuple[float, float]


def thin(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """The same line to the eye: every peak and every dip stays. In the order of the points, which is time's."""
    count = len(points)
    if count <= most:
        return list(points)
    stretches = max(most // 2, 1)
    kept: list[Point] = []
    for begin, end in pairwise(count * number // stretches for number in range(stretches + 1)):
        part = points[begin:end]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += [low] if low is high else sorted((low, high))
    return kept


def thinned(counts: Sequence[int], most: int = MOST) -> str:
    """What to say below a figure, of how many points each line has; nothing where all are drawn."""
    long = [count for count in counts if count > most]
    if not long:
        return ""
    return f"Drawn from {sum(counts):,} points as the least and the most of each stretch; the numbers are of all."
