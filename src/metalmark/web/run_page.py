"""The page of a run, of whatever kind, and the page of a sweep: the report's own sections and figures."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from metalmark.errors import UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.training import Ending, TrainingRun
from metalmark.report.answer import answer
from metalmark.report.charts.cells import energy_figures, scaling_figures, throughput_figures
from metalmark.report.charts.draw import Missing
from metalmark.report.content import Content
from metalmark.report.html.blocks import figures_block, not_drawn
from metalmark.report.html.document import run_section, sweep_section, trainings_section
from metalmark.report.text.run_page import Fact, machine_facts, software_facts
from metalmark.report.text.units import count, moment
from metalmark.results.ceilings import NO_CEILINGS, ceilings_of
from metalmark.results.cells import cells_of
from metalmark.results.comparison import comparable_keys
from metalmark.results.measured import measured_of
from metalmark.results.pairing import shown
from metalmark.store.live import read_one
from metalmark.store.selection import select
from metalmark.store.sqlite import Store
from metalmark.web.shell import render, respond
from metalmark.workloads.ceiling import COPY, MATMUL

KILLED = "stopped from outside before it could tell its end"
KEPT_DRAWINGS = 64

DrawingKey = tuple[str, ...]


class Drawings:
    """The figures drawn last, shared by the server's threads. A run that has ended never changes, and drawing it takes
    as long as reading a thousand; one thread draws at a time, for the sake of whatever is being measured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: OrderedDict[DrawingKey, Markup] = OrderedDict()

    def get(self, key: DrawingKey, draw: Callable[[], Markup]) -> Markup:
        with self._lock:
            if key not in self._drawn:
                self._drawn[key] = draw()
                while len(self._drawn) > KEPT_DRAWINGS:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(key)
            return self._drawn[key]


DRAWINGS = Drawings()


def run_page(request: Request, store_path: Path) -> HTMLResponse:
    identifier = request.path_params["id"]
    with Store(store_path, readonly=True) as store:
        rows = select(identifier, store, files=False).rows
        if len(rows) != 1:
            raise UsageError(f"{identifier} is more than one run.", hint="Open the sweep's page.")
        (run,) = store.load(rows)
        cell = store.load(store.rows_of_cells(rows)) if isinstance(run, BenchRun) else [run]
        names = store.names().get(run.id, [])
        measured = store.of_workloads([MATMUL, COPY], frameworks=[rows[0].framework])
    ceilings = ceilings_of(one for one in measured if isinstance(one, BenchRun)) if measured else NO_CEILINGS
    status = read_one(store_path, run.id)
    running = status if status is not None and status.alive else None

    def draw() -> Markup:
        missing: list[Missing] = []
        return run_section(run, missing, ceilings=ceilings) + not_drawn(missing)

    epochs = len(run.epochs) if isinstance(run, TrainingRun) else 0
    header = run.header
    body = render(
        "run.html",
        lines=answer(Content(runs=tuple(cell))),
        sweep=header.sweep,
        names=names,
        running=running,
        others=[other for other in cell if other.id != run.id],
        section=DRAWINGS.get(("run", run.id, run.started_at, str(epochs), header.ending, repr(ceilings)), draw),
    )
    killed = header.ending == Ending.RUNNING and running is None
    return respond(f"Run {run.id}", body, subtitle=f"{header.kind.value}, {KILLED if killed else header.ending}")


def sweep_page(request: Request, store_path: Path) -> HTMLResponse:
    identifier = request.path_params["id"]
    with Store(store_path, readonly=True) as store:
        runs = store.load(store.rows(sweep=identifier))
        plans = _plans(store, identifier)
        names = store.names().get(identifier, [])
    status = read_one(store_path, identifier)
    if not runs and status is None:
        raise UsageError(f"There is no sweep {identifier}.", hint="The list of runs shows what is stored.")
    content = Content(runs=tuple(runs), plans=() if status else plans)
    body = render(
        "sweep.html",
        lines=answer(content),
        id=identifier,
        names=names,
        running=status if status and status.alive else None,
        by=_comparable(runs),
        section=sweep_section(content.bench_runs, plans=content.plans, links="/run/") if _has_cells(content) else "",
        figures=_figures(content) if runs else Markup(),
        machines=_machines(runs),
    )
    when = f", {moment(content.times[0])} UTC" if runs else ""
    return respond(f"Sweep {identifier}", body, subtitle=f"{count(len(runs), 'run')}{when}")


def find_page(request: Request, store_path: Path) -> Response:
    return RedirectResponse(address_of(request.path_params["word"], store_path), 303)


def address_of(query: str, store_path: Path) -> str:
    """The page of whatever a query means: an id, the beginning of one, a sweep, a name."""
    with Store(store_path, readonly=True) as store:
        selection = select(query, store, files=False)
    sweep = selection.sweep or (selection.rows[-1].sweep if len(selection.rows) > 1 else "")
    return f"/sweep/{sweep}" if sweep else f"/run/{selection.rows[-1].id}"


def _has_cells(content: Content) -> bool:
    """Whether the sweep is of a bench, which may have no run yet."""
    return bool(content.bench_runs or content.plans or not content.runs)


def _plans(store: Store, sweep: str) -> tuple[Plan, ...]:
    """What was planned in a sweep; for one that came in a bundle that is not known."""
    try:
        return store.sweep(sweep).plans
    except UsageError:
        return ()


def _comparable(runs: Sequence[AnyRun]) -> list[tuple[str, str]]:
    """What tells the cells of a sweep apart and can be compared."""
    cells = measured_of(runs)
    return [(key, shown(key)) for key in comparable_keys(cells) if len({cell.value(key) for cell in cells}) > 1]


def _figures(content: Content) -> Markup:
    def draw() -> Markup:
        missing: list[Missing] = []
        body = Markup()
        if content.bench_runs:
            cells = cells_of(content.bench_runs)
            drawn = [*throughput_figures(cells), *scaling_figures(cells), *energy_figures(cells)]
            body += figures_block(drawn, missing)
        if content.trainings:
            body += trainings_section(content.trainings, missing)
        return body + not_drawn(missing)

    states = (f"{run.id} {run.header.ending} {len(getattr(run, 'epochs', ()))}" for run in content.runs)
    return DRAWINGS.get(("sweep", *states), draw)


def _machines(runs: Sequence[AnyRun]) -> list[list[Fact]]:
    """Each machine once, with all the software that ran on it."""
    machines: dict[str, list[Fact]] = {}
    for header in (run.header for run in runs):
        if header.machine is not None and header.software is not None:
            facts = machines.setdefault(repr(header.machine), machine_facts(header.machine))
            facts += [fact for fact in software_facts(header.software) if fact not in facts]
    return list(machines.values())
