"""A Figure: what was drawn, what it says in words, and the numbers it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from metalmark.report.table import Table


class Figure(Struct, frozen=True, kw_only=True):
    title: str
    svg: str
    """Made by `draw.svg`: everything in it is escaped."""
    label: str
    """What it shows, for those who do not see it."""
    numbers: Table
    about: str = ""
    """Under the title: what the marks are, and what was left out of the drawing."""


class Missing(Struct, frozen=True, kw_only=True):
    """A figure with nothing to draw, and why."""

    title: str
    reason: str


Drawn = Figure | Missing


def titled(what: str, of: str) -> str:
    """`of`: empty where the figure stands below a heading that says it."""
    return f"{what}: {of}" if of else what


def numbers(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, texts: int = 1) -> Table:
    """A Table whose first `texts` columns are words and the others figures."""
    numeric = tuple(place >= texts for place in range(len(headers)))
    return Table(headers=headers, numeric=numeric, rows=tuple(rows), caption="", notes=())
