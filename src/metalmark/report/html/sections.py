"""Sections of a page: a run of any kind, the cells of a sweep, and trainings side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Plan, word
from metalmark.model.run import Failed, Series, Telemetry
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.report.charts.curves import together_figures, training_figures, training_name, watched_figures
from metalmark.report.charts.draw import Drawn, Missing
from metalmark.report.charts.lines import Span
from metalmark.report.charts.over_time import sensor_figures, series_figures, steps_figure
from metalmark.report.html.blocks import (
    Value,
    columns_of,
    facts_block,
    figures_block,
    from_table,
    join,
    notes_block,
    table,
)
from metalmark.report.html.page import render
from metalmark.report.text.run_page import (
    derived_lines,
    machine_facts,
    run_facts,
    software_facts,
    when,
    window_values,
)
from metalmark.report.text.run_tables import training_table, watched_table
from metalmark.report.text.tables import Table, plan_name, spaced, sweep_table
from metalmark.report.text.units import reading
from metalmark.report.training_sides import side_notes, side_tables
from metalmark.results.ceilings import NO_CEILINGS, Ceilings
from metalmark.results.cells import Cell, cells_of, varying
from metalmark.scrub import scrub
from metalmark.stats.summary import median

if TYPE_CHECKING:
    from markupsafe import Markup

ANY_WIDTH = 10_000
SERIES = columns_of(
    "series", "from", "readings", "lowest", "median", "highest", numbers={"readings", "lowest", "median", "highest"}
)
FAILED = columns_of("workload", "framework", "device", "what happened", "why, and what to do", "what else")
MOST_ROWS = 1500
"""A page of more is slow to open and too large to send; other formats have every row."""
APART: dict[str, Callable[[Cell], str]] = {
    "machine": lambda cell: cell.records[0].machine.chip,
    "sweep": lambda cell: cell.records[0].sweep,
}
"""Columns for what is the same in one sweep, and not in several."""


def run_section(
    run: AnyRun,
    missing: list[Missing],
    *,
    ceilings: Ceilings = NO_CEILINGS,
    draws: bool = True,
    machine: bool = True,
    level: int = 2,
) -> Markup:
    """Return everything that is known of one run. `draws`: with figures. `machine`: False where the page says it."""
    header = run.header
    outcome = run.outcome if isinstance(run, BenchRun) else None
    done = outcome if isinstance(outcome, Completed) else None
    failure = run.failure if isinstance(run, TrainingRun) else outcome
    shown = _table(run)
    blocks = [facts_block(run_facts(run))]
    if machine and header.machine is not None:
        blocks.append(facts_block(machine_facts(header.machine)))
    if header.software is not None:
        blocks.append(facts_block(software_facts(header.software)))
    return render(
        "run.html",
        anchor=f"run-{run.id}",
        level=level,
        heading=header.label,
        id=run.id,
        when=when(run),
        ending=header.ending,
        failure=failure if isinstance(failure, Failed) else None,
        error=run.error if isinstance(run, WatchedRun) else "",
        flags=run.flags if isinstance(run, BenchRun) else (),
        table="" if shown is None else from_table(shown, caption=False),
        notes=[*derived_lines(run, ceilings), *_notes(run, done)],
        figures=figures_block(_figures(run), missing) if draws else "",
        folded=shown is not None,
        blocks=blocks,
        telemetry="" if header.telemetry is None else telemetry_table(header.telemetry, done),
    )


def trainings_section(runs: Sequence[TrainingRun], missing: list[Missing]) -> Markup:
    """Return the trainings side by side, then each."""
    parts = [figures_block(together_figures(runs), missing)]
    if len(runs) > 1:
        parts += [from_table(one, notes=False, sorts=False) for one in side_tables(runs, columns=ANY_WIDTH)]
        parts.append(notes_block(list(side_notes(runs))))
    return join([*parts, *(run_section(run, missing, machine=False, level=3) for run in runs)])


def telemetry_table(telemetry: Telemetry, run: Completed | None = None) -> Markup:
    """Return what each sensor read in the measured window where that is known, else over the whole run."""
    rows = [_series(one, run) for one in telemetry.series]
    absent = [f"no {name}: {reason}" for name, reason in telemetry.absent.items()]
    if not rows:
        why = "Telemetry was switched off." if telemetry.hz is None else "No sensor gave a reading."
        return notes_block([why, *absent])
    over = "in the measured window" if run is not None else "over the whole run"
    return table(SERIES, rows, caption=f"Sensor readings {over}", notes=absent)


def sweep_section(
    runs: Sequence[BenchRun], *, plans: Sequence[Plan] = (), left_out: Sequence[str] = (), links: str = "#run-"
) -> Markup:
    """Return the cells that completed and those that could not. `plans`: everything that was planned, where known: what
    has no run yet is listed. `left_out`: what was not tried, with the reasons. `links`: how the address of a run
    begins; empty for none."""
    cells = cells_of(runs)
    done = {repr(cell.plan) for cell in cells}
    return render(
        "sweep.html",
        ran=_ran(cells, links),
        failed=_failed(cells, links),
        missing=[plan_name(plan, plans) for plan in plans if repr(plan) not in done],
        left_out=[scrub(line) for line in left_out],
        count=len(cells),
        processes=len(runs),
    )


def _table(run: AnyRun) -> Table | None:
    """The epochs of a training, the passes of a watched run."""
    if isinstance(run, TrainingRun):
        return training_table(run) if run.epochs else None
    return watched_table(run) if isinstance(run, WatchedRun) and run.passes else None


def _notes(run: AnyRun, done: Completed | None) -> list[str]:
    if isinstance(run, TrainingRun) and len(run.sessions) > 1:
        starts = ", ".join(f"epoch {session.first_epoch}" for session in run.sessions[1:])
        return [f"It was stopped and resumed: {len(run.sessions)} sessions, which began again at {starts}."]
    if isinstance(run, WatchedRun) and not run.passes:
        return list(run.notes)
    if done is None:
        return []
    fallbacks = [f"on the CPU for want of a kernel: {', '.join(done.fallbacks)}"] if done.fallbacks else []
    return [*done.notes, *fallbacks]


def _figures(run: AnyRun) -> list[Drawn]:
    if isinstance(run, WatchedRun):
        return [*watched_figures(run), *series_figures(run.telemetry, run.name, headed=True)]
    if isinstance(run, BenchRun):
        if not isinstance(run.outcome, Completed):
            return []
        steps = steps_figure(Cell(plan=run.plan, records=(run,)), run.plan.label, headed=True)
        return [*([steps] if steps else []), *sensor_figures(run, run.plan.label, headed=True)]
    drawn: list[Drawn] = [*training_figures(run)]
    for number, session in enumerate(run.sessions):
        which = f", session {number + 1}" if len(run.sessions) > 1 else ""
        own = [epoch for epoch in run.epochs if epoch.session == number]
        spans = [Span(epoch.begin_s, epoch.end_s, f"epoch {epoch.number}") for epoch in own]
        drawn += series_figures(session.telemetry, f"{training_name(run)}{which}", spans=spans, headed=not which)
    return drawn


def _series(series: Series, run: Completed | None) -> list[str | Value]:
    values = window_values(series.at_s, series.values, run)
    lead = [spaced(series.name), series.source, str(len(values))]
    if not values:
        return [*lead, "", "", ""]
    shown = (min(values), median(values), max(values))
    return [*lead, *(Value(text=reading(value, series.unit), sort=float(value)) for value in shown)]


def _ran(cells: Sequence[Cell], links: str) -> Markup | None:
    """Cells of several sweeps and machines are one table: a page has room, and it filters."""
    done = [cell for cell in cells if not cell.failure]
    if not done:
        return None
    shown = done[:MOST_ROWS]
    ours = sweep_table(shown)
    columns = [*columns_of(*ours.headers, numbers=set(compress(ours.headers, ours.numeric)))]
    rows: list[list[str | Value]] = [list(row) for row in ours.rows]
    for name, ask in APART.items():
        values = [ask(cell) for cell in shown]
        if len(set(values)) > 1:
            columns += columns_of(name)
            rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
    if links:
        columns += columns_of("run", codes={"run"})
        ids = [cell.records[0].id for cell in shown]
        rows = [[*row, Value(text=one, href=f"{links}{one}")] for row, one in zip(rows, ids, strict=True)]
    cut = [f"The first {MOST_ROWS:,} of {len(done):,}; --format csv has them all."] if len(done) > MOST_ROWS else []
    return table(columns, rows, caption=ours.caption, notes=[*cut, *ours.notes])


def _failed(cells: Sequence[Cell], links: str) -> Markup | None:
    lost = [cell for cell in cells if cell.failure][:MOST_ROWS]
    if not lost:
        return None
    params, _ = varying([cell.plan for cell in cells])
    rows: list[list[str | Value]] = []
    for cell in lost:
        plan, failure = cell.plan, cell.failure
        assert failure is not None
        chosen = {name: word(plan.params[name]) for name in params if name in plan.params}
        extras = {"mode": plan.mode.value, **chosen, **plan.settings.changed()}
        href = f"{links}{cell.records[-1].id}" if links else ""
        what = Value(text=failure.kind.value, href=href, look="what")
        why = " ".join(filter(None, (failure.message, failure.hint)))
        else_ = ", ".join(f"{spaced(name)} {value}" for name, value in extras.items())
        rows.append([plan.workload, plan.framework, str(plan.device), what, why, else_])
    return table(FAILED, rows, caption="What could not run", marks=["failed"] * len(rows))
