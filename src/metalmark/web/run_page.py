"""The list of runs of every kind, the page of one, and the page of a sweep: the report's own sections and figures."""

import threading
from collections.abc import Callable, Sequence

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from metalmark.errors import FormatError, MetalmarkError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.run import RunKind
from metalmark.model.training import Ending, TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.report.answer import answer
from metalmark.report.charts.cells import energy_figures, scaling_figures, throughput_figures
from metalmark.report.charts.draw import Missing
from metalmark.report.content import Content
from metalmark.report.html.document import (
    explanations_section,
    parity_section,
    run_section,
    sweep_section,
    trainings_section,
    tunings_section,
)
from metalmark.report.html.page import Value, columns_of, figures_block, not_drawn, table
from metalmark.report.text.run_list import HEADERS, list_line, result_of
from metalmark.report.text.run_page import Fact, machine_facts, software_facts
from metalmark.report.text.units import count, moment
from metalmark.results.ceilings import NO_CEILINGS, ceilings_of
from metalmark.results.cells import cells_of
from metalmark.results.measured import measured_of
from metalmark.store.address import Address
from metalmark.store.live import read_all, read_one
from metalmark.store.row import Row
from metalmark.store.selection import select
from metalmark.store.store import Store
from metalmark.web.compare_page import compare_choices
from metalmark.web.shell import how_far, left_out, render, respond
from metalmark.workloads.ceiling import COPY, MATMUL

ROWS = 50
MOST_CHARACTERS = 200
MOST_CHOSEN = 60

COLUMNS = columns_of("", "run", *HEADERS[1:], "sweep", numbers={"batch"}, codes={"run", "sweep"})
KILLED = "stopped from outside before it could tell its end"
KEPT_DRAWINGS = 64


class Drawings:
    """The figures drawn last, shared by the server's threads. A run that has ended never changes, and drawing it takes
    as long as reading a thousand; one thread draws at a time, for the sake of whatever is being measured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn: dict[tuple[str, ...], Markup] = {}

    def get(self, key: tuple[str, ...], draw: Callable[[], Markup]) -> Markup:
        with self._lock:
            # What was asked for last stands last.
            self._drawn[key] = self._drawn.pop(key) if key in self._drawn else draw()
            if len(self._drawn) > KEPT_DRAWINGS:
                del self._drawn[next(iter(self._drawn))]
            return self._drawn[key]


DRAWINGS = Drawings()


def runs_page(request: Request, store_address: Address) -> HTMLResponse:
    query = request.query_params
    text = query.get("q", "")[:MOST_CHARACTERS]
    chosen = list(dict.fromkeys(identifier for identifier in query.getlist("run") if identifier))[:MOST_CHOSEN]
    with Store(store_address, readonly=True) as store:
        page = store.page(text.split(), before=query.get("before", ""), after=query.get("after", ""), limit=ROWS)
        total, names = store.count(), store.names()
    lines = [_line(row, names, row.id in chosen) for row in page.rows]
    marks = ["" if result_of(row) else "failed" for row in page.rows]
    here = [row.id for row in page.rows]
    body = render(
        "runs.html",
        q=text,
        table=table(COLUMNS, lines, caption="", marks=marks, filter=False) if lines else None,
        kept=[identifier for identifier in chosen if identifier not in here],
        newer=here[0] if page.newer and here else "",
        older=here[-1] if page.older and here else "",
        total=total,
        running=[status for status in read_all(store_address) if status.alive],
        how_far=how_far,
    )
    return respond("Runs", body, subtitle=f"{count(total, 'run')} in the store", here="Runs")


def _line(row: Row, names: dict[str, list[str]], checked: bool) -> list[str | Value]:
    identifier, *facts, result, ending, named = list_line(row, names)
    return [
        Value(text=render("choose.html", id=row.id, checked=checked), look="choose"),
        Value(text=identifier, href=f"/run/{row.id}"),
        *facts,
        # Within one kind it sorts by its figure: the time of a step, or the accuracy.
        Value(text=result, sort=row.step_s if row.step_s is not None else row.accuracy),
        Value(text=ending, look="what"),
        named,
        Value(text=row.sweep, href=f"/sweep/{row.sweep}" if row.sweep else ""),
    ]


def run_page(request: Request, store_address: Address) -> HTMLResponse:
    identifier = request.path_params["id"]
    with Store(store_address, readonly=True) as store:
        rows = select(identifier, store, files=False).rows
        if len(rows) != 1:
            raise UsageError(f"{identifier} is more than one run.", hint="Open the sweep's page.")
        damaged: list[MetalmarkError] = []
        (run,) = store.load(rows) or (None,)
        if run is None:
            raise UsageError(f"There is no run {identifier} any more.", hint="The list of runs shows what is stored.")
        cell = store.load(store.rows_of_cells(rows), on_error=damaged.append) if isinstance(run, BenchRun) else [run]
        names = store.names().get(run.id, [])
        measured = store.of_workloads([MATMUL, COPY], frameworks=[rows[0].framework], on_error=damaged.append)
    ceilings = ceilings_of(one for one in measured if isinstance(one, BenchRun)) if measured else NO_CEILINGS
    # What runs is known by the id of the command's sweep, a training by its own.
    status = read_one(store_address, run.sweep if isinstance(run, TuningRun) else run.id)
    running = status if status is not None and status.alive else None

    def draw() -> Markup:
        missing: list[Missing] = []
        return run_section(run, missing, ceilings=ceilings) + not_drawn(missing)

    header = run.header
    body = render(
        "run.html",
        lines=answer(Content(runs=tuple(cell))),
        sweep=header.sweep,
        names=names,
        running=running,
        others=[other for other in cell if other.id != run.id and isinstance(other, BenchRun)],
        how_far=how_far,
        section=DRAWINGS.get(("run", run.started_at, _state(run), repr(ceilings)), draw),
    )
    body = left_out(damaged) + body
    killed = header.ending == Ending.RUNNING and running is None
    ending = KILLED if killed else Ending.RUNNING if running is not None else header.ending
    return respond(f"Run {run.id}", body, subtitle=f"{header.kind.value}, {ending}")


def sweep_page(request: Request, store_address: Address) -> HTMLResponse:
    identifier = request.path_params["id"]
    with Store(store_address, readonly=True) as store:
        damaged: list[MetalmarkError] = []
        runs = store.load(store.rows(sweep=identifier), on_error=damaged.append)
        plans: tuple[Plan, ...] = ()
        try:
            plans = store.sweep(identifier).plans
        except UsageError:
            pass  # it came in a bundle, and what was planned is not known
        except FormatError as error:
            damaged.append(error)
        names = store.names().get(identifier, [])
    status = read_one(store_address, identifier)
    if not runs and damaged:
        raise damaged[0]
    if not runs and status is None:
        raise UsageError(f"There is no sweep {identifier}.", hint="The list of runs shows what is stored.")
    content = Content(runs=tuple(runs), plans=() if status else plans)
    has_cells = content.bench_runs or content.measured_plans or not runs  # a bench may have no run yet
    body = render(
        "sweep.html",
        lines=answer(content),
        id=identifier,
        names=names,
        running=status if status and status.alive else None,
        how_far=how_far,
        by=compare_choices(measured_of(runs)),
        section=_tuned(content)
        + (sweep_section(content.bench_runs, plans=content.measured_plans, links="/run/") if has_cells else Markup()),
        figures=_figures(content) if runs else Markup(),
        machines=_machines(runs),
    )
    body = left_out(damaged) + body
    when = f", {moment(content.times[0])} UTC" if runs else ""
    return respond(f"Sweep {identifier}", body, subtitle=f"{count(len(runs), 'run')}{when}")


def find_page(request: Request, store_address: Address) -> Response:
    return RedirectResponse(address_of(request.path_params["word"], store_address), 303)


def address_of(query: str, store_address: Address) -> str:
    """The page of whatever a query means: an id, the beginning of one, a sweep, a name."""
    with Store(store_address, readonly=True) as store:
        selection = select(query, store, files=False)
    sweep = selection.sweep or (selection.rows[-1].sweep if len(selection.rows) > 1 else "")
    return f"/sweep/{sweep}" if sweep else f"/run/{selection.rows[-1].id}"


def ended_address(identifier: str, store_address: Address) -> str:
    """Return the page of what a command came to: of one tuning its own, which has the ladder; else that of all runs."""
    with Store(store_address, readonly=True) as store:
        tunings = [row for row in store.rows(sweep=identifier) if row.kind == RunKind.TUNE]
    return f"/run/{tunings[0].id}" if len(tunings) == 1 else address_of(identifier, store_address)


def _tuned(content: Content) -> Markup:
    """The ladders of tunings, which stand above the trials that they come from."""
    if not content.tunings:
        return Markup()

    def draw() -> Markup:
        missing: list[Missing] = []
        return tunings_section(content.tunings, missing) + not_drawn(missing)

    return DRAWINGS.get(("tuned", *map(_state, content.tunings)), draw)


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
        if content.parities:
            body += parity_section(content.parities, missing)
        if content.explanations:
            body += explanations_section(content.explanations, missing)
        return body + not_drawn(missing)

    return DRAWINGS.get(("sweep", *map(_state, content.runs)), draw)


def _state(run: AnyRun) -> str:
    """Tell a run from itself at another time: a training has more epochs then, a tuning another ladder."""
    grown = len(run.epochs) if isinstance(run, TrainingRun) else hash(repr(run)) if isinstance(run, TuningRun) else 0
    return f"{run.id} {run.header.ending} {grown}"


def _machines(runs: Sequence[AnyRun]) -> list[list[Fact]]:
    """Each machine once, with all the software that ran on it."""
    machines: dict[str, list[Fact]] = {}
    for header in (run.header for run in runs):
        if header.machine is not None and header.software is not None:
            facts = machines.setdefault(repr(header.machine), machine_facts(header.machine))
            facts += [fact for fact in software_facts(header.software) if fact not in facts]
    return list(machines.values())
