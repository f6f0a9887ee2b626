"""Bars with intervals: a row per cell, a colour per device, the figure written at the end of its bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from metalmark.report.charts.draw import INK, MUTED, PAPER, SERIES, WIDTH, Canvas, plain, svg
from metalmark.report.text.units import figures

ROW_PX = 21
MOST_ROWS = 24
PADDING = {"left": 16, "right": 4, "top": 4, "bottom": 2}
"""On the left for names that are wider in a browser's font than in the one that the drawing was measured with."""


class Bar(Struct, frozen=True, kw_only=True):
    row: str
    group: str
    """What its colour stands for."""
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    """Published by others, not measured here."""


def bars_svg(bars: Sequence[Bar], *, unit: str, percent: bool = False) -> str:
    """`unit`: the title of the axis."""
    return svg(lambda canvas: _chart(canvas, bars, unit, percent))


def _chart(canvas: Canvas, bars: Sequence[Bar], unit: str, percent: bool) -> Any:
    alt = canvas.alt
    groups = list(dict.fromkeys(plain(bar.group) for bar in bars))
    rows = list(dict.fromkeys(plain(bar.row) for bar in bars))
    together = len({(bar.row, bar.group) for bar in bars}) > len(rows)
    most = max(bar.high if bar.high is not None else bar.value for bar in bars)
    y = alt.Y(
        "row:N",
        sort=rows,
        title=None,
        axis=alt.Axis(domain=False, ticks=False, labelPadding=6, labelColor=INK, labelLimit=190),
    )
    # Room at the right for the figure at the longest bar's end.
    scale = alt.Scale(domain=[0, most * 1.28 or 1.0], nice=False, zero=True)
    axis = alt.Axis(tickCount=4, format=".0%" if percent else "~s", grid=True)
    x = alt.X("value:Q", title=unit, scale=scale, axis=axis)
    range_ = [SERIES[place % len(SERIES)] for place in range(len(groups))]
    legend = alt.Legend(title=None) if len(groups) > 1 else None
    offset: dict[str, Any] = {"yOffset": alt.YOffset("group:N", sort=groups)} if together else {}
    colours = alt.Scale(domain=groups, range=range_)
    base = canvas.chart([_row(bar, unit, percent) for bar in bars]).encode(y=y, **offset)
    says = alt.Description("says:N")
    known = base.transform_filter("isValid(datum.low)")
    colour, stroke = (
        alt.Color("group:N", scale=colours, legend=legend),
        alt.Stroke("group:N", scale=colours, legend=None),
    )
    layers = [
        base.transform_filter("!datum.hollow").mark_bar(height={"band": 0.72}, aria=True).encode(
            x=x, color=colour, description=says
        ),
        base.transform_filter("datum.hollow").mark_bar(
            height={"band": 0.72}, strokeWidth=1.5, strokeDash=[3, 2], fill=PAPER, aria=True
        ).encode(x=x, stroke=stroke, description=says),
        # Light under dark: an interval is seen on its bar and beside it.
        known.mark_rule(color=PAPER, strokeWidth=4).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        known.mark_rule(color=INK, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        base.mark_text(align="left", dx=5, baseline="middle", color=MUTED).encode(
            x=alt.X("end:Q"), text=alt.Text("text:N")
        ),
    ]  # fmt: skip
    height = ROW_PX * (len(rows) * (len(groups) if together else 1))
    return alt.layer(*layers).properties(
        width=WIDTH, height=height + 44 + (16 * len(groups) if len(groups) > 1 else 0),
        padding=PADDING, autosize=alt.AutoSizeParams(type="fit", contains="padding"),
    )  # fmt: skip


def _row(bar: Bar, unit: str, percent: bool) -> dict[str, Any]:
    says = f"{bar.row}, {bar.group}: {bar.text}"
    if bar.low is not None and bar.high is not None and not percent:
        says += f", 95% interval {figures(bar.low)} to {figures(bar.high)}"
    return {
        "row": plain(bar.row), "group": plain(bar.group), "value": bar.value, "low": bar.low, "high": bar.high,
        "end": max(bar.value, bar.high or 0.0), "text": plain(bar.text), "hollow": bar.hollow,
        "says": plain(f"{says} ({unit})", 300),
    }  # fmt: skip
