"""Tables that sort by click and by key and filter as one types; without script they are tables all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from metalmark.report.html.page import render
from metalmark.report.table import Table

if TYPE_CHECKING:
    from markupsafe import Markup

ROWS_TO_FILTER = 6
ROWS_TO_SORT = 2
SHORT = 24
"""A cell of up to so many characters stands on one line."""

_NUMBER = re.compile(r"[*≈~±<]?\s*(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([^\s\d]*)")
_SCALES = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "mJ": 1e-3, "µJ": 1e-6, "nJ": 1e-9, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "GB/s": 1e9,
}  # fmt: skip


class Kind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    CODE = "code"


class Column(Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind = Kind.TEXT


class Value(Struct, frozen=True, kw_only=True):
    """A cell that is more than its text. `href` is for addresses of our own: nothing a user wrote goes there."""

    text: str
    sort: float | str | None = None
    href: str = ""
    look: str = ""
    """Class names: bad, flag, good."""

    def __post_init__(self) -> None:
        if self.href and not self.href.startswith(("#", "/", "./", "../", "?")):
            raise ValueError("a cell links to this page or this site only")


class Line(Struct, frozen=True, kw_only=True):
    cells: tuple[Value, ...]
    mark: str = ""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Value]],
    *,
    caption: str = "",
    notes: Sequence[str] = (),
    marks: Sequence[str] = (),
    filter: bool | None = None,
    sorts: bool = True,
    anchor: str = "",
) -> Markup:
    """`marks`: a class name a row ("failed"). `filter`: a box to filter by; None where there are rows enough.
    `sorts`: False where the order of the rows is part of what they say."""
    lines = [
        Line(cells=tuple(map(_cell, row, columns)), mark=mark)
        for row, mark in zip(rows, marks or [""] * len(rows), strict=True)
    ]
    return render(
        "table.html",
        columns=columns,
        rows=lines,
        caption=caption,
        notes=notes,
        anchor=anchor,
        sortable=sorts and len(rows) >= ROWS_TO_SORT,
        filter=sorts and len(rows) >= ROWS_TO_FILTER if filter is None else filter,
    )


def from_table(
    found: Table,
    *,
    notes: bool = True,
    caption: bool = True,
    marks: Sequence[str] = (),
    filter: bool | None = None,
    sorts: bool = True,
    anchor: str = "",
) -> Markup:
    """A Table of `report/`, as it stands in a terminal."""
    columns = [
        Column(name=header, kind=Kind.NUMBER if numeric else Kind.TEXT)
        for header, numeric in zip(found.headers, found.numeric, strict=True)
    ]
    return table(
        columns,
        found.rows,
        caption=found.caption if caption else "",
        notes=found.notes if notes else (),
        marks=marks,
        filter=filter,
        sorts=sorts,
        anchor=anchor,
    )


def sort_key(text: str) -> float | None:
    """What a figure with a unit is worth: 1.20 ms before 3 s. None where it is no figure, so that it comes last."""
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    return float(found[1].replace(",", "")) * _SCALES.get(found[2].rstrip(".,;"), 1.0)


def _cell(given: str | Value, column: Column) -> Value:
    value = given if isinstance(given, Value) else Value(text=given)
    sort: float | str | None = value.sort
    if sort is None and column.kind is Kind.NUMBER:
        key = sort_key(value.text)
        sort = "" if key is None else key
    if isinstance(sort, float):
        sort = f"{sort:.12g}"
    looks = [value.look, {Kind.NUMBER: "number", Kind.CODE: "id"}.get(column.kind, "")]
    if column.kind is Kind.TEXT:
        looks.append("short" if len(value.text) <= SHORT else "long")
    return Value(text=value.text, sort=sort, href=value.href, look=" ".join(filter(None, looks)))
