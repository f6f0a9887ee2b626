"""A Figure, and how it is drawn: Vega-Lite to SVG when a page is written, so no script and no font is needed to see it.

Colours are those of the light page; its styles replace each by a variable, so that a figure follows light and dark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from metalmark.errors import NotInstalledError
from metalmark.report.html.page import INSTALL
from metalmark.report.text.tables import Table
from metalmark.scrub import printable

WIDTH = 392
"""Pixels of a whole figure: three fit side by side on a screen of 1280, and one fits a telephone."""
INK, MUTED, RULE, FAINT, PAPER = "#1d1f22", "#5b6067", "#dddcd6", "#efeeea", "#fbfaf8"
SERIES = ("#0067a5", "#c25200", "#00805d", "#a4457f", "#8a6d00", "#5b5fc7", "#4d5358")
"""Told apart by lightness too, for people who see colours otherwise; page.css has a dark counterpart of each."""
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 2, 1, 2), (12, 4), (3, 5))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

CONFIG: dict[str, Any] = {
    "background": None,
    "mark": {"aria": False},
    "font": "sans-serif",
    "padding": {"left": 6, "right": 4, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED, "titleColor": MUTED, "gridColor": FAINT, "domainColor": RULE, "tickColor": RULE,
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelLimit": 150, "tickSize": 4,
        "titlePadding": 6, "labelOverlap": True, "aria": False,
    },
    "legend": {
        "labelColor": INK, "titleColor": MUTED, "labelFontSize": 11, "titleFontSize": 11, "labelLimit": 300,
        "titleFontWeight": "normal", "orient": "bottom", "direction": "vertical", "offset": 8, "rowPadding": 1,
        "symbolSize": 60, "symbolStrokeWidth": 2, "aria": False,
    },
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
}  # fmt: skip

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


class Missing(Struct, frozen=True, kw_only=True):
    """A figure with nothing to draw, and why."""

    title: str
    reason: str


Drawn = Figure | Missing


def titled(what: str, of: str) -> str:
    """Return a title; `of` is empty where the heading above says it."""
    return f"{what}: {of}" if of else what


def numbers(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, texts: int = 1) -> Table:
    """Return a Table whose first `texts` columns are text and the others numbers."""
    numeric = tuple(place >= texts for place in range(len(headers)))
    return Table(headers=headers, numeric=numeric, rows=tuple(rows), caption="", notes=())


class Canvas:
    """What a chart is made with: altair, and rows that altair only knows by name, since it copies what it is given."""

    def __init__(self, altair: Any) -> None:
        self.alt = altair
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def chart(self, rows: list[dict[str, Any]]) -> Any:
        name = f"rows{len(self.rows)}"
        self.rows[name] = rows
        return self.alt.Chart(self.alt.NamedData(name=name))


def svg(build: Callable[[Canvas], Any]) -> str:
    """Return the chart that `build` makes as SVG, and smaller than it comes: no pixel needs three decimals.

    The `description` channel of a mark becomes a `<title>` inside of it, which a browser shows on hovering. Vega writes
    it as a label for screen readers; those read the figure's own label and its table instead.
    """
    try:
        import altair
        import vl_convert
        from altair.utils.schemapi import debug_mode
    except ImportError as error:
        raise NotInstalledError("Charts need the extra `web`, which is not installed.", hint=INSTALL) from error
    # Checking each part of a chart against the schema takes longer than drawing it; the drawing fails on a wrong one.
    with debug_mode(False):
        canvas = Canvas(altair)
        spec = build(canvas).to_dict(validate=False, context={"pre_transform": False})
    spec |= {"config": CONFIG, "datasets": canvas.rows}
    text = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    text = _LABELLED.sub(r"<\1\3><title>\2</title></\1>", text)
    text = _EMPTY.sub("", _TAG.sub(lambda tag: _ARIA.sub("", tag[0]), text))
    text = _TAG.sub(lambda tag: _LONG.sub(lambda number: f"{float(number[0]):.2f}", tag[0]), text)
    # Two figures of one page must not share what `url(#...)` means.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    return _ID.sub(rf"\g<1>f{own}-\g<2>", text)


def plain(text: str, most: int = 80) -> str:
    """Text of a run for a figure: on one line, of bounded length, without characters that no browser shows."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
