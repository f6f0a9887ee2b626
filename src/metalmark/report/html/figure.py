"""A Figure as a block of a page: its title, the drawing, and its numbers in a table below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metalmark.report.charts.figures import Drawn, Figure
from metalmark.report.html.page import render
from metalmark.report.html.tables import from_table

if TYPE_CHECKING:
    from markupsafe import Markup

ROWS_TO_FILTER = 24


def figure_block(figure: Figure) -> Markup:
    from markupsafe import Markup

    return render(
        "figure.html",
        figure=figure,
        drawing=Markup(figure.svg),  # drawn by draw.svg, which escapes what it writes
        numbers=from_table(figure.numbers, caption=False, filter=len(figure.numbers.rows) > ROWS_TO_FILTER),
    )


def figures_block(drawn: Sequence[Drawn]) -> Markup:
    """All that could be drawn, side by side where there is room, and a line for each that could not."""
    missing: dict[str, dict[str, None]] = {}
    for one in drawn:
        if not isinstance(one, Figure):
            missing.setdefault(one.reason, {})[one.title] = None
    return render(
        "figures.html",
        figures=[figure_block(one) for one in drawn if isinstance(one, Figure)],
        missing=[(", ".join(titles), reason) for reason, titles in missing.items()],
    )
