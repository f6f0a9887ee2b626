"""Tables of runs of every kind: the same for a terminal, a notebook and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.report.text.run_list import HEADERS, list_line
from metalmark.report.text.tables import Table, sweep_table
from metalmark.report.text.training_table import training_table, watched_table
from metalmark.report.training_sides import side_tables
from metalmark.results.cells import cells_of
from metalmark.store.row import Row

WIDE = 200


def run_tables(runs: Sequence[AnyRun], *, plans: Sequence[Plan] = (), columns: int = WIDE) -> list[Table]:
    """One table of the bench runs, one of a training's epochs or of several trainings side by side, one per
    watched run."""
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    trainings = [run for run in runs if isinstance(run, TrainingRun)]
    watched = [run for run in runs if isinstance(run, WatchedRun)]
    tables = [sweep_table(cells, plans=plans)] if cells or plans else []
    if len(trainings) == 1:
        tables.append(training_table(trainings[0], columns=columns))
    elif trainings:
        tables += side_tables(trainings, columns=columns)
    return [*tables, *(watched_table(run) for run in watched)]


def list_table(rows: Sequence[Row]) -> Table:
    """The list of runs as a table."""
    return Table(
        headers=HEADERS,
        numeric=tuple(header == "batch" for header in HEADERS),
        rows=tuple(list_line(row) for row in rows),
        caption="Runs, the newest last",
        notes=(),
    )
