"""Numbers as people read them: three figures, a unit, never more precision than was measured. And `grouped`."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from metalmark.errors import counted
from metalmark.model.run import Absent
from metalmark.model.training import ACCURACY, Target

Known = TypeVar("Known")
Item = TypeVar("Item")
Key = TypeVar("Key")

BARS = "▁▂▃▄▅▆▇█"
FLAT_SHARE = 0.01
SHARES = {ACCURACY, "top5", "mean_iou", "exact_match"}
"""Figures of an epoch that are shares of samples, pixels or classes."""

count = counted


def prefix_of(value: float) -> tuple[float, str]:
    """The scale of a small value, and what its unit begins with."""
    prefixes = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))
    return next((found for found in prefixes if value >= found[0]), (1e-9, "n"))


def seconds(value: float) -> str:
    scale, prefix = prefix_of(value)
    return f"{figures(value / scale)} {prefix}s"


def joules(value: float) -> str:
    scale, prefix = prefix_of(value)
    return f"{figures(value / scale)} {prefix}J"


def figures(value: float) -> str:
    """Three significant figures without an exponent, thousands separated."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.9995 else f"{value:.3g}"


def share(value: float) -> str:
    return "<0.1%" if value < 0.001 else f"{value * 100:.1f}%"


def size(value: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= scale:
            return f"{figures(value / scale)} {unit}"
    return f"{value:.0f} B"


def duration(value: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def moment(utc: str) -> str:
    """The time of a run to the second: "2026-11-15 08:00:00"."""
    return utc[:19].replace("T", " ")


def known(value: Known | Absent, show: Callable[[Known], str], absent: str = "-") -> str:
    return absent if isinstance(value, Absent) else show(value)


def percent(value: float | Absent) -> str:
    """An accuracy, to the hundredth."""
    return "-" if isinstance(value, Absent) else f"{value * 100:.2f}%"


def metric_value(name: str, value: float | Absent) -> str:
    """A figure of an epoch: shares of samples as percentages, what has no such range as a number."""
    if isinstance(value, Absent):
        return "-"
    return percent(value) if name in SHARES else f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.4g}"


def target_shown(target: Target) -> str:
    """A target in words: "87.00%" of an accuracy, "val_loss 0.3" of anything else."""
    value = metric_value(target.name, target.value) if target.name in SHARES else f"{target.value:g}"
    return value if target.name == ACCURACY else f"{target.name} {value}"


def reading(value: float, unit: str) -> str:
    """A sensor's value with its unit."""
    return size(value) if unit == "bytes" else f"{figures(value)} {unit}".rstrip()


def spark(values: Sequence[float], width: int, *, scale: tuple[float, float] | None = None) -> str:
    """A line of small bars, the oldest on the left. Where values are more than characters, each character shows the
    mean of its share, so that none is hidden. `scale`: the lowest and highest of several lines to be compared."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [number * len(values) // columns for number in range(columns + 1)]
    shown = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    low, high = scale or (min(shown), max(shown))
    if high - low <= FLAT_SHARE * max(abs(high), abs(low)):
        # A quantity that stands still must not look like one that jumps.
        return BARS[3] * len(shown)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in shown)


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """The items of each key, both in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
