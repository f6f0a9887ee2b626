"""The document around the body of a page, one file that needs no other or one that links to files of a server; and its
pieces: tables that sort and filter where there is script, and figures."""

import base64
import hashlib
import re
from collections.abc import Container, Sequence
from enum import StrEnum
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metalmark.errors import NotInstalledError
from metalmark.report.charts.draw import INSTALL, Drawn, Figure, Missing
from metalmark.report.text.tables import Table
from metalmark.report.text.units import grouped
from metalmark.scrub import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HERE = Path(__file__).parent
Link = tuple[str, str]
CSS, JS, ICON = "page.css", "page.js", "icon.svg"
ROWS_TO_FILTER = 6
ROWS_TO_SORT = 2
FIGURE_ROWS_TO_FILTER = 24
SHORT = 24
"""A cell of up to so many characters is not wrapped."""

_NUMBER = re.compile(r"[*≈~±<]?\s*(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([^\s\d]*)")
_SCALES = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "mJ": 1e-3, "µJ": 1e-6, "nJ": 1e-9, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "GB/s": 1e9,
}  # fmt: skip


def page(
    title: str, body: "Markup", *, script: str = "", static: str = "", nav: Sequence[Link] = (), subtitle: str = ""
) -> str:
    """Return a whole document.

    `static`: where page.css and page.js are served; empty puts both into the document, with their hashes in its
    policy. `script`: one more script, by its address where `static` is given, else its text. `nav`: the text and the
    address of each link at the top; the page that is open has none.
    """
    # One block each: a policy by hash has to name every one.
    style, scripts = asset(CSS), "\n".join([asset(JS), *([script] if script else [])])
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, scripts)]
    # It allows these two texts, and nothing else to be loaded, sent or run.
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; base-uri 'none'; "
        "form-action 'none'"
    )
    values = {"title": title, "subtitle": subtitle, "body": body, "nav": nav, "static": static, "script": script}
    return str(render("page.html", **values, style=_inert(style), scripts=_inert(scripts), policy=policy))


@cache
def asset(name: str) -> str:
    """Return page.css, page.js or icon.svg: what a server sends under `static`."""
    if name not in (CSS, JS, ICON):
        raise KeyError(name)
    return (HERE / name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> "Markup":
    """Render a template of this package: each str among the values is escaped, a Markup stays as it is."""
    from markupsafe import Markup

    return Markup(environment().get_template(template).render(**values))


@cache
def environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise NotInstalledError("Pages need the extra `web`, which is not installed.", hint=INSTALL) from error

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # A browser shows a right-to-left mark too, and a name that holds one reads as another.
    made.finalize = lambda value: printable(value) if type(value) is str else value
    return made


def _inert(text: str) -> "Markup":
    """Refuse a text that holds the end of a <style> or <script> block: a browser would not unescape it there."""
    from markupsafe import Markup

    if "</" in text or "<!--" in text:
        raise ValueError("this text would end the block it stands in")
    return Markup(text)


class ColumnKind(StrEnum):
    """The class name of its cells, but for text."""

    TEXT = "text"
    NUMBER = "number"
    CODE = "id"


class Column(Struct, frozen=True, kw_only=True):
    name: str
    kind: ColumnKind = ColumnKind.TEXT


def columns_of(*names: str, numbers: Container[str] = (), codes: Container[str] = ()) -> tuple[Column, ...]:
    """Columns of text, but for those named in `numbers` and `codes`."""
    kinds = [(numbers, ColumnKind.NUMBER), (codes, ColumnKind.CODE)]
    return tuple(
        Column(name=name, kind=next((kind for held, kind in kinds if name in held), ColumnKind.TEXT)) for name in names
    )


class Value(Struct, frozen=True, kw_only=True):
    """A cell that is more than its text. `href` takes addresses of this site only: nothing that a user wrote."""

    text: str
    sort: float | str | None = None
    href: str = ""
    look: str = ""
    """Class names: bad, flag, good."""

    def __post_init__(self) -> None:
        if self.href and not self.href.startswith(("#", "/", "./", "../", "?")):
            raise ValueError("a cell links to this page or this site only")


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Value]], *, caption: str = "", notes: Sequence[str] = (),
    marks: Sequence[str] = (), filter: bool | None = None, sorts: bool = True, anchor: str = "",
) -> "Markup":  # fmt: skip
    """`marks`: a class name per row ("failed"). `filter`: whether it has a box to filter by; None: if it has many rows.
    `sorts`: False where the order of the rows has a meaning."""
    return render(
        "table.html",
        columns=columns, caption=caption, notes=notes, anchor=anchor,
        rows=[(mark, map(_cell, row, columns)) for row, mark in zip(rows, marks or [""] * len(rows), strict=True)],
        sortable=sorts and len(rows) >= ROWS_TO_SORT,
        filter=sorts and len(rows) >= ROWS_TO_FILTER if filter is None else filter,
    )  # fmt: skip


def from_table(
    given: Table, *, notes: bool = True, caption: bool = True, filter: bool | None = None, sorts: bool = True
) -> "Markup":
    """Return a Table as a terminal shows it."""
    return table(
        columns_of(*given.headers, numbers=set(compress(given.headers, given.numeric))),
        given.rows,
        caption=given.caption if caption else "",
        notes=given.notes if notes else (),
        filter=filter,
        sorts=sorts,
    )


def sort_key(text: str) -> float | None:
    """Return the value of a figure with a unit, so that 1.20 ms sorts before 3 s. None: not a figure; it sorts last."""
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    return float(found[1].replace(",", "")) * _SCALES.get(found[2].rstrip(".,;"), 1.0)


def figures_block(drawn: Sequence[Drawn], missing: list[Missing]) -> "Markup":
    """Return what could be drawn, each figure with its numbers below; what could not is added to `missing`."""
    from markupsafe import Markup

    missing += [one for one in drawn if isinstance(one, Missing)]
    figures = []
    for one in drawn:
        if isinstance(one, Figure):
            numbers = from_table(one.numbers, caption=False, filter=len(one.numbers.rows) > FIGURE_ROWS_TO_FILTER)
            # Its SVG is drawn by charts.draw.svg, which escapes what it writes.
            figures.append((one, Markup(one.svg), numbers))
    return render("figures.html", figures=figures)


def not_drawn(missing: Sequence[Missing]) -> "Markup":
    """Return one line for all that could not be drawn, the reasons each once."""
    titles = grouped((one.reason.rstrip("."), one.title) for one in missing)
    parts = [f"{', '.join(dict.fromkeys(names))} ({reason})" for reason, names in titles.items()]
    return render("absent.html", parts="; ".join(parts))


def _cell(given: str | Value, column: Column) -> Value:
    value = given if isinstance(given, Value) else Value(text=given)
    sort: float | str | None = value.sort
    if sort is None and column.kind is ColumnKind.NUMBER:
        key = sort_key(value.text)
        sort = "" if key is None else key
    if isinstance(sort, float):
        sort = f"{sort:.12g}"
    looks = [value.look, column.kind.value]
    if column.kind is ColumnKind.TEXT:
        looks[1] = "short" if len(value.text) <= SHORT else "long"
    return Value(text=value.text, sort=sort, href=value.href, look=" ".join(filter(None, looks)))
