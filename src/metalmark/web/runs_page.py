"""The list of runs: newest first, found by words, page by page, with boxes to choose some and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.report.html.tables import Column, Kind, Value, table
from metalmark.report.rows import names_of
from metalmark.report.units import figures, moment, seconds
from metalmark.store.live import read_all
from metalmark.store.search import SearchStore
from metalmark.store.sqlite import Row
from metalmark.web.shell import render, respond

ROWS = 50
MOST_CHARACTERS = 200
MOST_CHOSEN = 60

COLUMNS = (
    Column(name=""), Column(name="run", kind=Kind.CODE), Column(name="when (UTC)"), Column(name="workload"),
    Column(name="mode"), Column(name="batch", kind=Kind.NUMBER), Column(name="dtype"), Column(name="framework"),
    Column(name="device"), Column(name="step", kind=Kind.NUMBER), Column(name="samples/s", kind=Kind.NUMBER),
    Column(name="name"), Column(name="sweep", kind=Kind.CODE),
)  # fmt: skip


def runs_page(request: Request, store_path: Path) -> HTMLResponse:
    query = request.query_params
    text = query.get("q", "")[:MOST_CHARACTERS]
    chosen = list(dict.fromkeys(word for word in query.getlist("run") if word))[:MOST_CHOSEN]
    with SearchStore(store_path, readonly=True) as store:
        found = store.page(text.split(), before=query.get("before", ""), after=query.get("after", ""), limit=ROWS)
        total, names = store.count(), store.names()
    here = {row.id for row in found.rows}
    body = render(
        "runs.html",
        q=text,
        table=_table(found.rows, names, chosen) if found.rows else None,
        kept=[word for word in chosen if word not in here],
        newer=found.rows[0].id if found.newer and found.rows else "",
        older=found.rows[-1].id if found.older and found.rows else "",
        total=total,
        running=[status for status in read_all(store_path) if status.alive],
    )
    return respond("Runs", body, subtitle=f"{total:,} records in the store", here="Runs")


def _table(rows: Sequence[Row], names: dict[str, list[str]], chosen: Sequence[str]) -> Markup:
    lines = [_line(row, names, row.id in chosen) for row in rows]
    marks = ["failed" if row.step_s is None else "" for row in rows]
    return table(COLUMNS, lines, caption="", marks=marks, filter=False)


def _line(row: Row, names: dict[str, list[str]], checked: bool) -> list[str | Value]:
    failed = row.step_s is None
    return [
        Value(text=render("choose.html", id=row.id, checked=checked), look="choose"),
        Value(text=row.id, href=f"/run/{row.id}"),
        moment(row.started_at),
        row.workload,
        row.mode,
        "" if row.batch_size is None else str(row.batch_size),
        row.dtype,
        row.framework,
        row.device,
        Value(text=row.outcome, look="what") if failed else Value(text=seconds(row.step_s or 0.0), sort=row.step_s),
        "" if failed else Value(text=figures(row.samples_s or 0.0), sort=row.samples_s),
        ", ".join(names_of(row, names)),
        Value(text=row.sweep, href=f"/sweep/{row.sweep}"),
    ]
