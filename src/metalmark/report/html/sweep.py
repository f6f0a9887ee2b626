"""What ran and what could not: the table of the cells, and below it each reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan, word
from metalmark.report.html.page import render
from metalmark.report.html.tables import Column, Kind, Value, table
from metalmark.report.table import sweep_table
from metalmark.results.cells import Cell, cells_of, varying
from metalmark.scrub import scrub

if TYPE_CHECKING:
    from markupsafe import Markup

COULD_NOT = (
    Column(name="workload"), Column(name="framework"), Column(name="device"), Column(name="what happened"),
    Column(name="why, and what to do"), Column(name="what else"),
)  # fmt: skip
MOST_ROWS = 1500
"""A page of more is slow to open and too large to send; other formats have every row."""
APART: dict[str, Callable[[Cell], str]] = {
    "machine": lambda cell: cell.records[0].machine.chip,
    "sweep": lambda cell: cell.records[0].sweep,
}
"""Columns for what is the same in one sweep, and not in several."""


def sweep_section(
    records: Sequence[BenchRun], *, plans: Sequence[Plan] = (), left_out: Sequence[str] = (), links: str = "#run-"
) -> Markup:
    """`plans`: all that was asked for, where known: what has no record yet is said too. `left_out`: what was not
    tried, with the reasons. `links`: what an address of a record begins with; empty for none."""
    cells = cells_of(records)
    return render(
        "sweep.html",
        ran=_ran(cells, links),
        failed=_failed(cells, links),
        missing=missing(cells, plans),
        left_out=[scrub(line) for line in left_out],
        count=len(cells),
        processes=len(records),
    )


def missing(cells: Sequence[Cell], plans: Sequence[Plan]) -> list[str]:
    """Plans that no cell is of."""
    done = {repr(cell.plan) for cell in cells}
    return [name_of(plan) for plan in plans if repr(plan) not in done]


def name_of(plan: Plan, params: Sequence[str] | None = None) -> str:
    chosen = plan.params if params is None else {name: plan.params[name] for name in params if name in plan.params}
    extras = {**{name: word(value) for name, value in chosen.items()}, **plan.settings.changed()}
    rest = "".join(f", {name.replace('_', ' ')} {value}" for name, value in extras.items())
    return f"{plan.workload} {plan.mode.value} on {plan.framework} {plan.device}{rest}"


def _ran(cells: Sequence[Cell], links: str) -> Markup | None:
    """Cells of several sweeps and machines are one table here: a page has room, and it filters."""
    done = [cell for cell in cells if not cell.failure]
    if not done:
        return None
    shown = done[:MOST_ROWS]
    found = sweep_table(shown)
    columns = [
        Column(name=header, kind=Kind.NUMBER if numeric else Kind.TEXT)
        for header, numeric in zip(found.headers, found.numeric, strict=True)
    ]
    rows: list[list[str | Value]] = [list(row) for row in found.rows]
    for name, ask in APART.items():
        values = [ask(cell) for cell in shown]
        if len(set(values)) > 1:
            columns.append(Column(name=name))
            rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
    if links:
        columns.append(Column(name="run", kind=Kind.CODE))
        ids = [cell.records[0].id for cell in shown]
        rows = [[*row, Value(text=one, href=f"{links}{one}")] for row, one in zip(rows, ids, strict=True)]
    cut = [f"The first {MOST_ROWS:,} of {len(done):,}; --format csv has them all."] if len(done) > MOST_ROWS else []
    return table(columns, rows, caption=found.caption, notes=[*cut, *found.notes])


def _failed(cells: Sequence[Cell], links: str) -> Markup | None:
    lost = [cell for cell in cells if cell.failure][:MOST_ROWS]
    if not lost:
        return None
    params, _ = varying([cell.plan for cell in cells])
    rows = [_could_not(cell, params, links) for cell in lost]
    return table(COULD_NOT, rows, caption="What could not run", marks=["failed"] * len(rows))


def _could_not(cell: Cell, params: Sequence[str], links: str) -> list[str | Value]:
    plan, failure = cell.plan, cell.failure
    assert failure is not None
    chosen = {name: word(plan.params[name]) for name in params if name in plan.params}
    extras = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in
                       {"mode": plan.mode.value, **chosen, **plan.settings.changed()}.items())  # fmt: skip
    identifier = cell.records[-1].id
    what = Value(text=failure.kind.value, href=f"{links}{identifier}" if links else "", look="what")
    why = " ".join(filter(None, (failure.message, failure.hint)))
    return [plan.workload, plan.framework, str(plan.device), what, why, extras]
