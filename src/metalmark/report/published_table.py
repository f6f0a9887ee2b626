"""Tables of published figures beside ours, in the layout they were published in, with what is wrong with each."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.plan import Mode, word
from metalmark.report.table import Table
from metalmark.report.units import figures
from metalmark.results.cells import Cell
from metalmark.results.published import METRICS, OTHER_METRICS, STEPS, Figure, published


def published_tables(cells: Sequence[Cell]) -> list[Table]:
    """For each workload and mode of ours that was published: their columns and ours, `-` for out of memory."""
    tables = []
    for workload in dict.fromkeys(cell.plan.workload for cell in cells):
        for mode in Mode:
            theirs = [figure for figure in published() if figure.workload == workload and figure.mode is mode]
            ours = [cell for cell in cells if cell.plan.workload == workload and cell.plan.mode is mode]
            if theirs and ours:
                tables.append(_table(workload, mode, theirs, ours))
    return tables


def _table(workload: str, mode: Mode, theirs: list[Figure], ours: list[Cell]) -> Table:
    metric = theirs[0].metric
    names = list(theirs[0].params)
    # Only parameters that differ, in their tables or in ours, are worth a column.
    keys = list(dict.fromkeys([*(_key(names, f.params) for f in theirs), *(_key_of(names, c) for c in ours)]))
    keys = [key for key in keys if any(_key_of(names, cell) == key for cell in ours)] or keys
    shown = [n for n in range(len(names)) if len({key[n] for key in keys}) > 1] or list(range(len(names)))
    devices = list(dict.fromkeys(figure.device for figure in theirs))
    columns = list(dict.fromkeys(_column(cell) for cell in ours)) if metric in METRICS else []
    rows = []
    for key in keys:
        published_here = {f.device: _theirs(f) for f in theirs if _key(names, f.params) == key}
        ours_here = {_column(cell): _ours(cell) for cell in ours if _key_of(names, cell) == key}
        values = [*(ours_here.get(column, "") for column in columns), *(published_here.get(d, "") for d in devices)]
        rows.append((*(key[n] for n in shown), *values))
    same = [f"{names[n].replace('_', ' ')} {keys[0][n]}" for n in range(len(names)) if n not in shown]
    label = METRICS.get(metric) or OTHER_METRICS[metric]
    return Table(
        headers=(*(names[n].replace("_", " ") for n in shown), *columns, *(f"{device} *" for device in devices)),
        numeric=(True,) * (len(shown) + len(columns) + len(devices)),
        rows=tuple(rows),
        caption=", ".join([workload, mode.value, *same, label]),
        notes=_notes(theirs, metric),
    )


def _notes(theirs: list[Figure], metric: str) -> tuple[str, ...]:
    sources = dict.fromkeys((figure.source, figure.note) for figure in theirs)
    lines = [f"* Published, not measured by us: {source}; {note}." for source, note in sources]
    lines.append("- is out of memory; an empty place was not run or not published.")
    if metric not in METRICS:
        lines.append("It counts more than training steps, so no figure of ours stands beside it.")
    return tuple(lines)


def _column(cell: Cell) -> str:
    machine = cell.records[0].machine
    where = cell.completed[0].device_name if cell.completed and machine.gpus else machine.chip
    settings = "".join(f", {name} {value}" for name, value in cell.plan.settings.changed().items())
    return f"{cell.plan.framework} {cell.plan.device}: {where}{settings}"


def _ours(cell: Cell) -> str:
    failure = cell.failure
    if failure is None:
        return figures(cell.step_s * STEPS)
    return "-" if failure.kind.value == "out of memory" else failure.kind.value


def _theirs(figure: Figure) -> str:
    return "-" if figure.value is None else f"{figure.value:,g}"


def _key(names: Sequence[str], params: dict[str, str]) -> tuple[str, ...]:
    return tuple(params.get(name, "") for name in names)


def _key_of(names: Sequence[str], cell: Cell) -> tuple[str, ...]:
    return tuple(word(cell.plan.params[name]) if name in cell.plan.params else "" for name in names)
