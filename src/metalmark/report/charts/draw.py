"""A Figure, and how it is drawn: Vega-Lite to SVG when a page is written, so no script and no font is needed to see it.
Here are bars with intervals, in lines.py lines.

Colours are those of the light page; its styles replace each by a variable, so that a figure follows light and dark.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from metalmark.errors import NotInstalledError
from metalmark.report.text.tables import Table
from metalmark.report.text.units import figures
from metalmark.scrub import printable

INSTALL = 'pip install "metalmark[web]"'
WIDTH = 392
"""Pixels of a whole figure: three fit side by side on a screen of 1280, and one fits a telephone."""
PALETTE = {"INK": "#1d1f22", "MUTED": "#5b6067", "RULE": "#dddcd6", "FAINT": "#efeeea", "PAPER": "#fbfaf8"}
SERIES = ("#0067a5", "#c25200", "#00805d", "#a4457f", "#8a6d00", "#5b5fc7", "#4d5358")
"""Told apart by lightness too, for people who see colours otherwise; page.css has a dark counterpart of each."""
ROW_PX = 21
CHARACTER_PX, MOST_LABEL_PX = 5.5, 190
LEAST_BARS = 0.35
"""Share of a chart's width that its longest bar has at least, however long the text at its end is."""
MOST_ROWS = 24

_VALUE = re.compile(r'"\$(\w+)"')
_TAG = re.compile(r"<[^>]+>")
_LONG = re.compile(r"\d+\.\d{3,}")
_EMPTY = re.compile(r'<path class="(?:foreground|background)"[^>]*?(?:d=""|d="M0,0h0v0h0Z")[^>]*/>')
_ID = re.compile(r'(\bid="|url\(#)([\w-]+)')
_LABELLED = re.compile(r'<(path|line) aria-label="([^"]*)"([^>]*)/>')
_ARIA = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')


class Figure(Struct, frozen=True, kw_only=True):
    title: str
    svg: str
    """Made by `svg`: everything in it is escaped."""
    label: str
    """What it shows, for screen readers."""
    numbers: Table
    about: str = ""
    """Under the title: what the marks are, and what was left out of the drawing."""


class Bar(Struct, frozen=True, kw_only=True):
    """A row with its interval; the figure is written at the end of the bar."""

    row: str
    group: str
    """What its colour stands for: a device."""
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    """Published by others, not measured here."""
    more: str = ""
    """What is shown after the figure on hovering."""


class Missing(Struct, frozen=True, kw_only=True):
    """A figure with nothing to draw, and why."""

    title: str
    reason: str


Drawn = Figure | Missing


def numbers(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, texts: int = 1) -> Table:
    """Return a Table whose first `texts` columns are text and the others numbers."""
    numeric = tuple(place >= texts for place in range(len(headers)))
    return Table(headers=headers, numeric=numeric, rows=tuple(rows), caption="")


def svg(chart: str, rows: dict[str, list[dict[str, Any]]], **values: Any) -> str:
    """Return a chart as SVG, and smaller than it comes: no pixel needs three decimals.

    `chart`: a file beside this one, in Vega-Lite; "$name" in it is one of `values`, and a layer without rows is left
    out. The `description` channel of a mark becomes a `<title>` inside of it, which a browser shows on hovering. Vega
    writes it as a label for screen readers; those read the figure's own label and its table instead.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise NotInstalledError("Charts need the extra `web`, which is not installed.", hint=INSTALL) from error
    spec = {**_filled(chart, values), "config": _filled("config.json", {}), "datasets": rows}
    spec["layer"] = [layer for layer in spec["layer"] if rows[layer["data"]["name"]]]
    text = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    text = _LABELLED.sub(r"<\1\3><title>\2</title></\1>", text)
    text = _EMPTY.sub("", _TAG.sub(lambda tag: _ARIA.sub("", tag[0]), text))
    text = _TAG.sub(lambda tag: _LONG.sub(lambda number: f"{float(number[0]):.2f}", tag[0]), text)
    # Two figures of one page must not share what `url(#...)` means.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    return _ID.sub(rf"\g<1>f{own}-\g<2>", text)


def _filled(name: str, values: dict[str, Any]) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    known = {**PALETTE, "WIDTH": WIDTH, **values}
    filled: dict[str, Any] = json.loads(_VALUE.sub(lambda found: json.dumps(known[found[1]]), text))
    return filled


def scale_of(names: Sequence[str], values: Sequence[Any] = SERIES) -> dict[str, Any]:
    """Return the scale that gives each name a colour, or another of `values`."""
    return {"domain": names, "range": [values[place % len(values)] for place in range(len(names))]}


def bars_svg(bars: Sequence[Bar], *, unit: str, percent: bool = False) -> str:
    """`unit`: the title of the axis."""
    groups = list(dict.fromkeys(plain(bar.group) for bar in bars))
    names = list(dict.fromkeys(plain(bar.row) for bar in bars))
    together = len({(bar.row, bar.group) for bar in bars}) > len(names)
    rows = [_bar_row(bar, unit, percent) for bar in bars]
    height = ROW_PX * len(names) * (len(groups) if together else 1)
    return svg(
        "bars.json",
        {
            "all": rows,
            "measured": [row for row in rows if not row["hollow"]],
            "published": [row for row in rows if row["hollow"]],
            "intervals": [row for row in rows if row["low"] is not None],
        },
        height=height + 44 + (16 * len(groups) if len(groups) > 1 else 0),
        names=names,
        offset={"field": "group", "type": "nominal", "sort": groups} if together else None,
        colours=scale_of(groups),
        legend={"title": None} if len(groups) > 1 else None,
        most=_axis_end(rows, names) or 1.0,
        unit=unit,
        format=".0%" if percent else "~s",
    )


def _axis_end(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> float:
    """Return where the axis ends, so that there is room for the text at the end of each bar."""
    width = WIDTH - 26 - min(MOST_LABEL_PX, CHARACTER_PX * max(map(len, names)))
    ends = [max(1.28 * row["end"], row["end"] / max(LEAST_BARS, 1 - _text_px(row["text"]) / width)) for row in rows]
    return float(max(ends))


def _text_px(text: str) -> float:
    return CHARACTER_PX * len(text) + 8


def _bar_row(bar: Bar, unit: str, percent: bool) -> dict[str, Any]:
    says = f"{bar.row}, {bar.group}: {bar.text}{f', {bar.more}' if bar.more else ''}"
    if bar.low is not None and bar.high is not None and not percent:
        says += f", 95% interval {figures(bar.low)} to {figures(bar.high)}"
    return {
        "row": plain(bar.row), "group": plain(bar.group), "value": bar.value, "low": bar.low, "high": bar.high,
        "end": max(bar.value, bar.high or 0.0), "text": plain(bar.text), "hollow": bar.hollow,
        "says": plain(f"{says} ({unit})", 300),
    }  # fmt: skip


def plain(text: str, most: int = 80) -> str:
    """Text of a run for a figure: on one line, of bounded length, without characters that no browser shows."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
