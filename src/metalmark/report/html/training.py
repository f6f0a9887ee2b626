"""Trainings and watched loops as sections of a page: the table of the epochs, the curves, the sensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metalmark.model.training import TrainingRun, TrainingSession
from metalmark.model.watch import WatchedRun
from metalmark.report.charts.curves import together_figures, training_figures, training_name, watched_figures
from metalmark.report.charts.figures import Drawn
from metalmark.report.charts.lines import Span
from metalmark.report.charts.sensors import series_figures
from metalmark.report.html.facts import Fact, facts_block, plan_facts, software_facts
from metalmark.report.html.figure import figures_block
from metalmark.report.html.page import render
from metalmark.report.html.record import telemetry_table
from metalmark.report.html.tables import Column, Kind, from_table, table
from metalmark.report.training_sides import side_notes, side_tables
from metalmark.report.training_table import training_table
from metalmark.report.units import duration, seconds, share
from metalmark.results.training_compare import sides_of

if TYPE_CHECKING:
    from markupsafe import Markup

ANY_WIDTH = 10_000
PASSES = (
    Column(name="loop"), Column(name="steps", kind=Kind.NUMBER), Column(name="time", kind=Kind.NUMBER),
    Column(name="waited for input", kind=Kind.NUMBER), Column(name="until the first batch", kind=Kind.NUMBER),
)  # fmt: skip


def trainings_section(records: Sequence[TrainingRun]) -> Markup:
    """All of them side by side, then each."""
    body = figures_block(together_figures(records))
    if len(records) > 1:
        for found in side_tables(records, columns=ANY_WIDTH):
            body += from_table(found, notes=False, sorts=False)
        body += render("notes.html", notes=list(side_notes(records, sides_of(records))))
    for record in records:
        body += training_section(record, level=3)
    return body


def training_section(record: TrainingRun, *, level: int = 2) -> Markup:
    setting = record.setting
    facts = plan_facts(record.plan)
    if setting is not None:
        facts += [
            Fact("ran on", f"{setting.placed_on} ({setting.device_name})"),
            Fact("network", f"{setting.parameters:,} parameters, {setting.trainable_parameters:,} trained"),
        ]
    blocks = [facts_block(facts)]
    if record.sessions:
        blocks.append(facts_block(software_facts(record.sessions[-1].software)))
    drawn: list[Drawn] = [*training_figures(record)]
    for number, session in enumerate(record.sessions, start=1):
        which = f", session {number}" if len(record.sessions) > 1 else ""
        spans = _epochs(record, number - 1)
        drawn += series_figures(session.telemetry, f"{training_name(record)}{which}", spans=spans, headed=not which)
    table = training_table(record)
    return render(
        "training.html",
        anchor=f"run-{record.id}",
        level=level,
        heading=f"Training {table.caption}",
        id=record.id,
        when=f"{record.started_at[:19].replace('T', ' ')} UTC, {record.ending.value}",
        failure=record.failure,
        table=from_table(table, caption=False) if record.epochs else "",
        blocks=blocks,
        figures=figures_block(drawn),
        telemetry=[telemetry_table(session.telemetry) for session in record.sessions[-1:]],
        notes=_sessions(record.sessions),
    )


def watched_section(run: WatchedRun, *, level: int = 2) -> Markup:
    facts = [Fact(name, str(value)) for name, value in run.params.items()]
    waits = [(loop, run.input_wait_share(loop)) for loop in run.stretches]
    facts += [Fact(f"waited for input, {loop}", share(part)) for loop, part in waits if part is not None]
    rows = [
        [one.loop, f"{one.steps:,}", seconds(one.elapsed_s), seconds(one.waited_s), seconds(one.first_wait_s)]
        for one in run.passes
    ]
    return render(
        "training.html",
        anchor=f"run-{run.id}",
        level=level,
        heading=run.name,
        id=run.id,
        when=f"{run.started_at[:19].replace('T', ' ')} UTC, {run.ended.value} after {duration(run.elapsed_s)}; "
        "its times are the host's",
        failure={"kind": {"value": run.ended.value}, "message": run.error, "hint": "", "detail": "", "phase": "",
                 "signal": None} if run.error else None,
        table=table(PASSES, rows, caption="Passes") if rows else "",
        blocks=[facts_block([*facts, *software_facts(run.software)])],
        figures=figures_block([*watched_figures(run), *series_figures(run.telemetry, run.name, headed=True)]),
        telemetry=[telemetry_table(run.telemetry)],
        notes=run.notes,
    )  # fmt: skip


def _epochs(record: TrainingRun, session: int) -> list[Span]:
    """Every other epoch is shaded."""
    own = [epoch for epoch in record.epochs if epoch.session == session]
    return [Span(epoch.begin_s, epoch.end_s, f"epoch {epoch.number}") for epoch in own]


def _sessions(sessions: Sequence[TrainingSession]) -> list[str]:
    if len(sessions) < 2:
        return []
    starts = ", ".join(f"epoch {session.first_epoch}" for session in sessions[1:])
    return [f"It was stopped and resumed: {len(sessions)} sessions, which began again at {starts}."]
