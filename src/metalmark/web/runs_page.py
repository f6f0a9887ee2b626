"""The list of runs of every kind: newest first, searched by words, page by page, with boxes to choose and compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.report.html.blocks import Value, columns_of, table
from metalmark.report.text.run_list import names_of, result_of, what_ran
from metalmark.report.text.units import count, moment
from metalmark.store.live import read_all
from metalmark.store.row import Row
from metalmark.store.sqlite import Store
from metalmark.web.shell import render, respond

ROWS = 50
MOST_CHARACTERS = 200
MOST_CHOSEN = 60

COLUMNS = columns_of(
    "", "run", "kind", "started (UTC)", "what", "framework", "device", "batch", "dtype", "result", "ending", "names",
    "sweep", numbers={"batch"}, codes={"run", "sweep"},
)  # fmt: skip


def runs_page(request: Request, store_path: Path) -> HTMLResponse:
    query = request.query_params
    text = query.get("q", "")[:MOST_CHARACTERS]
    chosen = list(dict.fromkeys(identifier for identifier in query.getlist("run") if identifier))[:MOST_CHOSEN]
    with Store(store_path, readonly=True) as store:
        page = store.page(text.split(), before=query.get("before", ""), after=query.get("after", ""), limit=ROWS)
        total, names = store.count(), store.names()
    here = {row.id for row in page.rows}
    body = render(
        "runs.html",
        q=text,
        table=_table(page.rows, names, chosen) if page.rows else None,
        kept=[identifier for identifier in chosen if identifier not in here],
        newer=page.rows[0].id if page.newer and page.rows else "",
        older=page.rows[-1].id if page.older and page.rows else "",
        total=total,
        running=[status for status in read_all(store_path) if status.alive],
    )
    return respond("Runs", body, subtitle=f"{count(total, 'run')} in the store", here="Runs")


def _table(rows: Sequence[Row], names: dict[str, list[str]], chosen: Sequence[str]) -> Markup:
    lines = [_line(row, names, row.id in chosen) for row in rows]
    marks = ["" if result_of(row) else "failed" for row in rows]
    return table(COLUMNS, lines, caption="", marks=marks, filter=False)


def _line(row: Row, names: dict[str, list[str]], checked: bool) -> list[str | Value]:
    return [
        Value(text=render("choose.html", id=row.id, checked=checked), look="choose"),
        Value(text=row.id, href=f"/run/{row.id}"),
        row.kind,
        moment(row.started_at),
        what_ran(row),
        row.framework,
        row.device,
        "" if row.batch_size is None else str(row.batch_size),
        row.dtype,
        # Within one kind it sorts by its figure: the time of a step, or the accuracy.
        Value(text=result_of(row), sort=row.step_s if row.step_s is not None else row.accuracy),
        Value(text=row.ending, look="what"),
        ", ".join(names_of(row, names)),
        Value(text=row.sweep, href=f"/sweep/{row.sweep}" if row.sweep else ""),
    ]
