"""What others published beside what we measured: hollow bars, a star, and their faults in words."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.plan import word
from metalmark.report.charts.bars import Bar, bars_svg
from metalmark.report.charts.figures import Drawn, Figure, Missing, numbers
from metalmark.report.charts.naming import by_workload
from metalmark.report.units import figures
from metalmark.results.cells import Cell
from metalmark.results.published import METRICS, STEPS, published
from metalmark.results.published import Figure as Theirs

OURS, THEIRS = "measured here", "published by others *"
MOST_FIGURES = 8


def published_figures(cells: Sequence[Cell]) -> list[Drawn]:
    """A figure for each set of parameters that both we and they ran."""
    drawn: list[Drawn] = []
    for (workload, mode), group in by_workload(cells).items():
        theirs = [one for one in published() if one.workload == workload and one.mode is mode and one.metric in METRICS]
        settings = dict.fromkeys(tuple(one.params.items()) for one in theirs)
        for params in settings:
            ours = [cell for cell in group if not cell.failure and _same(cell, dict(params))]
            there = [one for one in theirs if tuple(one.params.items()) == params and one.value is not None]
            if ours and there:
                drawn.append(_figure(f"{workload}, {mode.value}", dict(params), ours, there))
    none = "nothing was published in this layout for these workloads and parameters"
    return drawn[:MOST_FIGURES] or [Missing(title="Beside published figures", reason=none)]


def _figure(name: str, params: dict[str, str], ours: Sequence[Cell], theirs: Sequence[Theirs]) -> Figure:
    bars, rows = [], []
    for cell in ours:
        machine = cell.records[0].machine
        where = cell.completed[0].device_name if machine.gpus else machine.chip
        dtype = cell.plan.settings.dtype.value
        value = cell.step_s * STEPS
        bars.append(Bar(row=f"{cell.plan.framework} {cell.plan.device}, {dtype}", group=OURS, value=value,
                        text=f"{figures(value)} s"))  # fmt: skip
        rows.append((f"{cell.plan.framework} {cell.plan.device}, {where}", "measured here", dtype, figures(value), ""))
    for one in theirs:
        assert one.value is not None
        bars.append(Bar(row=f"{one.device} *", group=THEIRS, value=one.value, text=f"{one.value:,g} s", hollow=True))
        rows.append((one.device, f"published: {one.source}", one.dtype, f"{one.value:,g}", one.note))
    with_params = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in params.items())
    return Figure(
        title=f"Beside published figures: {name}",
        about=f"With {with_params}. * Published, not measured by us, once and without an interval: {theirs[0].note}.",
        label=f"Bar chart: seconds for {STEPS} steps of {name}, {with_params}, measured here and published by others.",
        svg=bars_svg(bars, unit=f"seconds for {STEPS} steps, less is better"),
        numbers=numbers(("device", "from", "dtype", f"s for {STEPS} steps", "its faults"), rows, texts=3),
    )


def _same(cell: Cell, params: dict[str, str]) -> bool:
    return all(name in cell.plan.params and word(cell.plan.params[name]) == value for name, value in params.items())
