"""A run's page and a sweep's: the report's own sections and figures, of what is stored now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Plan
from metalmark.report.charts.scaling import scaling_figures
from metalmark.report.charts.sensors import sensor_figures
from metalmark.report.charts.steps import steps_figure
from metalmark.report.charts.throughput import energy_figures, throughput_figures
from metalmark.report.html.facts import Fact, facts_block, machine_facts, software_facts
from metalmark.report.html.figure import figures_block
from metalmark.report.html.record import heading, record_section
from metalmark.report.html.sweep import sweep_section
from metalmark.results.ceilings import ceilings_of
from metalmark.results.cells import Cell, cells_of
from metalmark.results.measured import measured_of
from metalmark.results.pairing import shown
from metalmark.store.live import read_one
from metalmark.store.sqlite import Store
from metalmark.store.trainings import TrainingStore
from metalmark.web.drawings import Drawings
from metalmark.web.shell import render, respond
from metalmark.workloads.ceiling import COPY, MATMUL

DRAWINGS = Drawings()


def run_page(request: Request, store_path: Path) -> HTMLResponse:
    word = request.path_params["id"]
    with Store(store_path, readonly=True) as store:
        found = store.find([word])
        if len(found) != 1:
            raise UsageError(f"{word} is more than one run.", hint="Open the sweep's page.")
        (record,) = found
        cell = store.of_sweep(record.sweep, record.cell)
        names = store.names().get(record.id, [])
        ceilings = ceilings_of(store.of_workloads([MATMUL, COPY], frameworks=[record.plan.framework]))
    body = render(
        "run.html",
        sweep=record.sweep,
        names=names,
        others=[other for other in cell if other.id != record.id],
        section=record_section(record, ceilings=ceilings),
        figures=_drawn(record),
    )
    return respond(f"Run {record.id}", body)


def sweep_page(request: Request, store_path: Path) -> HTMLResponse:
    word = request.path_params["id"]
    with Store(store_path, readonly=True) as store:
        records = store.of_sweep(word)
        plans = _plans(store, word)
        names = store.names().get(word, [])
    running = read_one(store_path, word)
    if not records and running is None:
        raise UsageError(f"There is no sweep {word}.", hint="The list of runs shows what is stored.")
    body = render(
        "sweep.html",
        id=word,
        names=names,
        running=running if running and running.alive else None,
        by=_by(records),
        section=sweep_section(records, plans=() if running else plans, links="/run/"),
        figures=_figures(cells_of(records), records) if records else Markup(),
        machines=_machines(records),
    )
    count = f"{len(records)} {'record' if len(records) == 1 else 'records'}"
    when = f", {records[0].started_at[:19].replace('T', ' ')} UTC" if records else ""
    return respond(f"Sweep {word}", body, subtitle=f"{count}{when}")


def find_page(request: Request, store_path: Path) -> Response:
    """To the page of whatever a word stands for: an id, the beginning of one, a sweep, a name, a training."""
    word = request.path_params["word"]
    with TrainingStore(store_path, readonly=True) as store:
        trainings = store.find_trainings(word)
        if trainings:
            return RedirectResponse(f"/training/{trainings[-1].id}", 303)
        found = store.find([word])
    if len(found) == 1 and word not in ("last", found[0].sweep):
        return RedirectResponse(f"/run/{found[0].id}", 303)
    return RedirectResponse(f"/sweep/{found[-1].sweep}", 303)


def _plans(store: Store, word: str) -> tuple[Plan, ...]:
    """Of a sweep that came in a bundle nobody knows what else was asked for."""
    try:
        return store.sweep(word).plans
    except UsageError:
        return ()


def _by(records: Sequence[BenchRun]) -> list[tuple[str, str]]:
    """What tells its cells apart and may be compared."""
    cells = measured_of(records)
    keys = dict.fromkeys(key for cell in cells for key in (*cell.how, "dtype"))
    return [(key, shown(key)) for key in keys if len({cell.value(key) for cell in cells}) > 1]


def _drawn(record: BenchRun) -> Markup:
    if not isinstance(record.outcome, Completed):
        return Markup()
    name = heading(record)

    def draw() -> Markup:
        steps = steps_figure(Cell(plan=record.plan, records=(record,)), name)
        return figures_block([*([steps] if steps else []), *sensor_figures(record, name)])

    return DRAWINGS.get(("run", record.id, record.started_at), draw)


def _figures(cells: Sequence[Cell], records: Sequence[BenchRun]) -> Markup:
    def draw() -> Markup:
        return figures_block([*throughput_figures(cells), *scaling_figures(cells), *energy_figures(cells)])

    return DRAWINGS.get(("sweep", *(record.id for record in records)), draw)


def _machines(records: Sequence[BenchRun]) -> Markup:
    """Each machine once, with all the software that ran on it."""
    found: dict[str, list[Fact]] = {}
    for record in records:
        facts = found.setdefault(repr(record.machine), machine_facts(record.machine))
        facts += [fact for fact in software_facts(record.software) if fact not in facts]
    return Markup().join(map(facts_block, found.values()))
