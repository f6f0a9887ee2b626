"""Trainings: their list, and one's page with its curves. The record is read from the training's own folder."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.errors import UsageError
from metalmark.model.training import Ending, TrainingRun
from metalmark.report.html.facts import facts_block, machine_facts, plan_facts, software_facts
from metalmark.report.html.tables import Column, Kind, Value, table
from metalmark.report.html.training import trainings_section
from metalmark.report.training_table import percent
from metalmark.report.units import figures, moment
from metalmark.store.live import read_one
from metalmark.store.trainings import TrainingRow, TrainingStore
from metalmark.web.drawings import Drawings
from metalmark.web.shell import render, respond

SHOWN = 200
KILLED = "stopped from outside before it could tell its end"
DRAWINGS = Drawings()

COLUMNS = (
    Column(name="training", kind=Kind.CODE), Column(name="when (UTC)"), Column(name="name"), Column(name="workload"),
    Column(name="batch", kind=Kind.NUMBER), Column(name="dtype"), Column(name="framework"), Column(name="device"),
    Column(name="epochs", kind=Kind.NUMBER), Column(name="best accuracy", kind=Kind.NUMBER),
    Column(name="samples/s", kind=Kind.NUMBER), Column(name="outcome"),
)  # fmt: skip


def trainings_page(_request: Request, store_path: Path) -> HTMLResponse:
    with TrainingStore(store_path, readonly=True) as store:
        rows, total = store.trainings(limit=SHOWN), store.count_trainings()
    found = table(COLUMNS, [_line(row) for row in reversed(rows)]) if rows else None
    body = render("trainings.html", table=found, left_out=total - len(rows))
    return respond("Trainings", body, subtitle=f"{total:,} trainings", here="Trainings")


def training_page(request: Request, store_path: Path) -> HTMLResponse:
    word = request.path_params["id"]
    with TrainingStore(store_path, readonly=True) as store:
        rows = [row for row in store.find_trainings(word) if row.id == word]
    if not rows:
        raise UsageError(f"There is no training {word}.", hint="The list of trainings shows what is known.")
    record = rows[0].record()
    running = read_one(store_path, word)
    alive = running is not None and running.alive
    body = render(
        "training.html",
        id=word,
        running=running if alive else None,
        failure=None if record.epochs else record.failure,
        section=_section(record) if record.epochs else None,
        facts=facts_block(plan_facts(record.plan)),
        machine=_machine(record),
    )
    state = KILLED if record.ending is Ending.RUNNING and not alive else record.ending.value
    return respond(f"Training {word}", body, subtitle=f"{record.plan.workload}, {state}")


def _section(record: TrainingRun) -> Markup:
    key = (record.id, str(len(record.epochs)), record.ending.value)
    return DRAWINGS.get(key, lambda: trainings_section([record]))


def _machine(record: TrainingRun) -> Markup:
    if not record.sessions:
        return Markup()
    last = record.sessions[-1]
    return facts_block([*machine_facts(last.machine), *software_facts(last.software)])


def _line(row: TrainingRow) -> list[str | Value]:
    return [
        Value(text=row.id, href=f"/training/{row.id}"),
        moment(row.started_at),
        row.name,
        row.workload,
        "" if row.batch_size is None else str(row.batch_size),
        row.dtype,
        row.framework,
        row.device,
        str(row.epochs),
        "" if row.accuracy is None else percent(row.accuracy),
        "" if row.samples_s is None else figures(row.samples_s),
        row.outcome,
    ]
