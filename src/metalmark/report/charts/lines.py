"""Lines: over time or over a parameter, told apart by colour and by dash, with intervals and phases where known."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from metalmark.report.charts.draw import SERIES, WIDTH, plain, scale_of, svg
from metalmark.report.text.units import figures

HEIGHT = 190
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 2, 1, 2), (12, 4), (3, 5))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
LEGEND_PX, LETTER_PX = 15, 5.5
LOG_FROM = 8.0
"""Where the highest value is so many times the lowest, a logarithmic axis shows more."""
MOST_LINES = len(SERIES)
MOST_POINTS = 480
"""Points of one line: more than a figure of 392 pixels can show."""
MOST_STRIPS = 16
"""Parts of a figure that show the values at that place on hovering."""

Point = tuple[float, float]


class Line(Struct, frozen=True, kw_only=True):
    name: str
    points: tuple[Point, ...]
    intervals: tuple[tuple[float, float] | None, ...] = ()
    """One per point, or none at all."""
    says: dict[float, str] = {}
    """What to show on hovering over the point at a place, where its value alone would not tell enough."""
    trend: bool = False
    """A trend: drawn over the other lines, in ink."""


class Span(NamedTuple):
    """A named part of the x axis."""

    begin: float
    end: float
    name: str


class Axis(NamedTuple):
    title: str
    log: bool = False
    zero: bool = False
    percent: bool = False
    whole: bool = False
    """Its values are counted: epochs, batch sizes."""


def wants_log(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= LOG_FROM


def lines_svg(
    lines: Sequence[Line], x: Axis, y: Axis, *, spans: Sequence[Span] = (), points: bool = False,
    level: float | None = None,
) -> str:  # fmt: skip
    """`points`: mark each one. `level`: a value to be reached, as a line across."""
    names = [plain(line.name) for line in lines if not line.trend]
    rows = [row for line in lines if not line.trend for row in _rows(line, x, y)]
    shown = []
    for begin, end, name in spans:
        room_px = (end - begin) / ((spans[-1].end - spans[0].begin) or 1.0) * (WIDTH - 50)
        # A name stands above its span where there is room for it.
        fitting = plain(name) if room_px >= LETTER_PX * len(name) else ""
        shown.append({"x": begin, "x2": end, "middle": (begin + end) / 2, "name": fitting})
    trends = [{**row, "trend": number} for number, line in enumerate(lines) if line.trend for row in _rows(line, x, y)]
    return svg(
        "lines.json",
        {
            "shades": shown[1::2],  # every other one
            "spans": shown,
            "level": [] if level is None else [{"y": level}],
            "strips": _strips(lines, x, y),
            "lines": rows,
            "intervals": [row for row in rows if row["low"] is not None],
            "points": rows if points else [],
            "trends": trends,
        },
        height=HEIGHT + (LEGEND_PX * len(names) + 8 if len(names) > 1 else 0),
        # A point's own legend would join the line's, and hide its dashes.
        resolve={"legend": {"fill": "independent", "shape": "independent"}} if points else {},
        x=_x(lines, x),
        y=_y(lines, y, level),
        legend={"title": None, "symbolType": "stroke", "symbolSize": 220} if len(names) > 1 else None,
        colours=scale_of(names),
        dashes=scale_of(names, DASHES),
        shapes=scale_of(names, SHAPES),
    )


def _x(lines: Sequence[Line], axis: Axis) -> dict[str, Any]:
    values = sorted({point[0] for line in lines for point in line.points})
    ticks: dict[str, Any] = {"tickCount": 6}
    if axis.whole and (axis.log or len(values) <= 8):
        # Only what was run stands on the axis: no batch of 3.5.
        ticks = {"values": values, "format": "~s" if max(values) >= 10_000 else ",~d"}
    scale = {"type": "log" if axis.log else "linear", "zero": axis.zero, "nice": False, "padding": 4}
    return {"field": "x", "type": "quantitative", "title": axis.title, "axis": {"grid": False, **ticks}, "scale": scale}


def _y(lines: Sequence[Line], axis: Axis, level: float | None) -> dict[str, Any]:
    values = [y for line in lines for _, y in line.points] + ([] if level is None else [level])
    values += [end for line in lines for interval in line.intervals if interval for end in interval]
    low, high = min(values), max(values)
    if axis.zero and not axis.log:
        low = min(low, 0.0)
    elif high - low < 0.02 * abs(high):
        # What hardly moves must not look like what jumps.
        low, high = low - 0.05 * abs(high), high + 0.05 * abs(high)
    if low == high:
        low, high = low - 1.0, high + 1.0
    # Trimmed, and fine enough that no two ticks of five read the same.
    share = f".{max(0, -math.floor(math.log10((high - low) / 6 * 100)))}~%"
    form = share if axis.percent else "~s" if high >= 10_000 else ",.4~r"
    ticks: dict[str, Any] = {"format": form, **({"values": _log_ticks(low, high)} if axis.log else {"tickCount": 5})}
    kind, padding = "log" if axis.log else "linear", 0 if axis.zero and not axis.log else 6
    scale = {"type": kind, "domain": [low, high], "nice": not axis.log, "zero": False, "padding": padding}
    return {"field": "y", "type": "quantitative", "title": axis.title, "scale": scale, "axis": ticks}


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times each power of ten; the powers alone where there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) <= 2.5 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low * 0.9 <= step * 10.0**power <= high * 1.1]


def _rows(line: Line, across: Axis, up: Axis) -> list[dict[str, Any]]:
    name = plain(line.name)
    # A line with intervals has few points; of the others it is not known, and they may have thousands.
    spans = line.intervals or None
    points = line.points if spans else thin(line.points)
    rows = []
    for place, (x, y) in enumerate(points):
        span = spans[place] if spans else None
        about = f", 95% interval {_value(span[0], up)} to {_value(span[1], up)}" if span else ""
        rows.append(
            {"name": name, "mark": name, "x": x, "y": y, "place": place, "low": span and span[0],
             "high": span and span[1], "says": plain(line.says[x], 300) if x in line.says
             else f"{_place(x, across)}: {name} {_value(y, up)}{about}"}
        )  # fmt: skip
    return rows


def _strips(lines: Sequence[Line], across: Axis, up: Axis) -> list[dict[str, Any]]:
    """Invisible upright parts of the figure that show the values of every line there on hovering."""
    drawn = [line for line in lines if not line.trend]
    xs = sorted({x for line in drawn for x, _ in line.points})
    if len(xs) < 2:
        return []
    middles = xs
    if len(xs) > MOST_STRIPS:
        width = (xs[-1] - xs[0]) / MOST_STRIPS
        middles = [xs[0] + width * (number + 0.5) for number in range(MOST_STRIPS)]
    edges = [xs[0], *(math.sqrt(a * b) if across.log else (a + b) / 2 for a, b in pairwise(middles)), xs[-1]]
    return [
        {"x": begin, "x2": end, "says": _at(drawn, middle, across, up)}
        for middle, (begin, end) in zip(middles, pairwise(edges), strict=True)
    ]


def _at(lines: Sequence[Line], middle: float, across: Axis, up: Axis) -> str:
    """Say the value of each line at its point nearest to `middle`."""
    if len(lines) == 1 and lines[0].says:
        return plain(lines[0].says[min(lines[0].says, key=lambda x: abs(x - middle))], 300)
    nearest = [min(line.points, key=lambda point: abs(point[0] - middle)) for line in lines]
    values = [f"{plain(line.name)} {_value(y, up)}" for line, (_, y) in zip(lines, nearest, strict=True)]
    return f"{_place(nearest[0][0], across)}: {', '.join(values)} ({up.title})"


def _place(value: float, axis: Axis) -> str:
    if axis.title.startswith("seconds"):
        return f"{figures(value)} s"
    return f"{axis.title} {value:g}" if axis.whole or axis.title == "step" else f"{figures(value)} {axis.title}"


def _value(value: float, axis: Axis) -> str:
    return f"{value * 100:.2f}%" if axis.percent else figures(value)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return fewer points that look the same: of each stretch that a pixel or two show, the lowest and the highest."""
    if (count := len(points)) <= most:
        return list(points)
    stretches = max(most // 2, 1)
    kept: list[Point] = []
    for begin, end in pairwise(count * number // stretches for number in range(stretches + 1)):
        part = points[begin:end]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += [low] if low is high else sorted((low, high))
    return kept


def thinned(counts: Sequence[int], most: int = MOST_POINTS) -> str:
    """Return what to say below a figure whose lines have so many points each; nothing where all are drawn."""
    if max(counts, default=0) <= most:
        return ""
    return f"Drawn from {sum(counts):,} points as the lowest and highest of each stretch; the numbers are of all."
