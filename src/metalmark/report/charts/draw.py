"""Vega-Lite to SVG, at the moment a page is written: no script and no font is needed to see it.

Colours are those of the page in light; its styles put its own in their place, so a figure follows light and dark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from metalmark.errors import NotInstalledError
from metalmark.report.html.page import INSTALL
from metalmark.scrub import printable

WIDTH = 392
"""Of a whole figure: three stand side by side on a screen of 1280 pixels, and one fits a telephone."""
INK, MUTED, RULE, FAINT, PAPER = "#1d1f22", "#5b6067", "#dddcd6", "#efeeea", "#fbfaf8"
SERIES = ("#0067a5", "#c25200", "#00805d", "#a4457f", "#8a6d00", "#5b5fc7", "#4d5358")
"""Told apart by people who see colours otherwise, by lightness too; each has its like in page.css for the dark."""
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 2, 1, 2), (12, 4), (3, 5))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

CONFIG: dict[str, Any] = {
    "aria": False,
    "background": None,
    "font": "sans-serif",
    "padding": {"left": 6, "right": 4, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED, "titleColor": MUTED, "gridColor": FAINT, "domainColor": RULE, "tickColor": RULE,
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelLimit": 150, "tickSize": 4,
        "titlePadding": 6, "labelOverlap": True,
    },
    "legend": {
        "labelColor": INK, "titleColor": MUTED, "labelFontSize": 11, "titleFontSize": 11, "labelLimit": 300,
        "titleFontWeight": "normal", "orient": "bottom", "direction": "vertical", "offset": 8, "rowPadding": 1,
        "symbolSize": 60, "symbolStrokeWidth": 2,
    },
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
}  # fmt: skip

_TAG = re.compile(r"<[^>]+>")
_LONG = re.compile(r"\d+\.\d{3,}")
_EMPTY = re.compile(r'<path class="(?:foreground|background)"[^>]*?(?:d=""|d="M0,0h0v0h0Z")[^>]*/>')
_ID = re.compile(r'(\bid="|url\(#)([\w-]+)')


class Canvas:
    """What a chart is made with: altair, and rows that it only hears the name of, since it copies what it is given."""

    def __init__(self, altair: Any) -> None:
        self.alt = altair
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def chart(self, rows: list[dict[str, Any]]) -> Any:
        name = f"rows{len(self.rows)}"
        self.rows[name] = rows
        return self.alt.Chart(self.alt.NamedData(name=name))


def svg(build: Callable[[Canvas], Any]) -> str:
    """The chart that `build` makes, as SVG, and smaller than it comes: no pixel needs three decimals."""
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
    text = _EMPTY.sub("", text)
    text = _TAG.sub(lambda tag: _LONG.sub(lambda number: f"{float(number[0]):.2f}", tag[0]), text)
    # Two figures of one page must not share what `url(#...)` means.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    return _ID.sub(rf"\g<1>f{own}-\g<2>", text)


def plain(text: str, most: int = 80) -> str:
    """A word of a record's for a figure: on one line, of bounded length, without what no browser shows."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
