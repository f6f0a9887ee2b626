"""How fast, how dear, how near the ceiling: a bar a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Mode
from metalmark.model.run import Absent
from metalmark.report.charts.bars import MOST_ROWS, Bar, bars_svg
from metalmark.report.charts.figures import Drawn, Figure, Missing, numbers
from metalmark.report.charts.naming import by_workload, common, row_name, where
from metalmark.report.derived_lines import joules
from metalmark.report.units import figures, seconds, share
from metalmark.results.ceilings import Ceilings, share_of_ceiling
from metalmark.results.cells import Cell
from metalmark.results.derived import Cost, Derived, derive
from metalmark.stats.summary import median
from metalmark.workloads.ceiling import COPY, MATMUL

PACE = ("cell", "device", "samples/s", "95% from", "to", "step", "over")
ENERGY = ("cell", "device", "J a sample", "mean power", "of", "source")
CEILING = ("cell", "device", "share", "GFLOP/s", "ceiling")


class Told(NamedTuple):
    """A bar and its line of numbers."""

    bar: Bar
    row: tuple[str, ...]


class Once:
    """What is derived of each record, worked out when it is first asked for: several figures ask."""

    def __init__(self) -> None:
        self._known: dict[str, Derived | None] = {}

    def of(self, record: BenchRun) -> Derived | None:
        if record.id not in self._known:
            self._known[record.id] = derive(record)
        return self._known[record.id]


def throughput_figures(cells: Sequence[Cell]) -> list[Drawn]:
    """One for each workload and mode; bars begin at 0, so that lengths compare."""
    return _figures(
        cells, "Throughput", _pace, PACE, unit="samples a second",
        about="Bars: median. Lines: 95% interval", texts=2, none=lambda: "no cell came to a result",
    )  # fmt: skip


def energy_figures(cells: Sequence[Cell], derived: Once | None = None) -> list[Drawn]:
    once = derived or Once()

    def ask(cell: Cell, others: Sequence[Cell]) -> Told | None:
        return _energy(cell, others, once)

    return _figures(
        cells, "Energy a sample", ask, ENERGY, unit="joules a sample, less is better",
        small="mJ a sample, less is better",
        about="Median over the processes, of the device that it ran on", texts=2,
        none=lambda: _why_no_energy(cells, once),
    )  # fmt: skip


def ceiling_figures(cells: Sequence[Cell], ceilings: Ceilings, derived: Once | None = None) -> list[Drawn]:
    once = derived or Once()
    measured = [cell for cell in cells if cell.plan.workload not in (MATMUL, COPY)]

    def ask(cell: Cell, others: Sequence[Cell]) -> Told | None:
        return _ceiling(cell, others, ceilings, once)

    return _figures(
        measured, "Share of the measured ceiling", ask, CEILING, unit="of what a matrix product reached here",
        about="Work by an analytic count over the time of a step", texts=2, percent=True,
        none=lambda: _why_no_share(measured, ceilings, once),
    )  # fmt: skip


def _figures(
    cells: Sequence[Cell],
    title: str,
    ask: Callable[[Cell, Sequence[Cell]], Told | None],
    headers: tuple[str, ...],
    *,
    unit: str,
    small: str = "",
    about: str,
    texts: int,
    none: Callable[[], str],
    percent: bool = False,
) -> list[Drawn]:
    drawn: list[Drawn] = []
    # What failed would lengthen the names of the others by settings that only it had.
    for (workload, mode), group in by_workload([cell for cell in cells if not cell.failure]).items():
        told = [one for cell in group if (one := ask(cell, group)) is not None]
        parts = [told[at : at + MOST_ROWS] for at in range(0, len(told), MOST_ROWS)]
        for number, part in enumerate(parts):
            more = f", {number + 1} of {len(parts)}" if len(parts) > 1 else ""
            drawn.append(
                Figure(
                    title=f"{title}: {workload}, {mode.value}{more}",
                    about=f"{about}. With {common(group)}.",
                    label=_label(title, workload, mode, part),
                    svg=_bars([one.bar for one in part], unit, small, percent),
                    numbers=numbers(headers, [one.row for one in part], texts=texts),
                )
            )
    return drawn or [Missing(title=title, reason=none())]


def _bars(bars: Sequence[Bar], unit: str, small: str, percent: bool) -> str:
    """`small`: the unit of a thousandth, where there is one and no value reaches the whole."""
    if not small or max(bar.value for bar in bars) >= 1:
        return bars_svg(bars, unit=unit, percent=percent)
    return bars_svg([msgspec.structs.replace(bar, value=bar.value * 1000) for bar in bars], unit=small)


def _label(title: str, workload: str, mode: Mode, told: Sequence[Told]) -> str:
    best = max(told, key=lambda one: one.bar.value).bar
    longest = f"{best.row} on {best.group}, {best.text}"
    return f"Bar chart: {title.lower()} of {workload} {mode.value}; the longest is {longest}."


def _pace(cell: Cell, cells: Sequence[Cell]) -> Told:
    interval, samples = cell.interval, cell.completed[0].samples_per_step
    low = samples / interval.high if interval and interval.high > 0 else None
    high = samples / interval.low if interval and interval.low > 0 else None
    bar = Bar(row=row_name(cell, cells), group=where(cell, cells), value=cell.samples_s, low=low, high=high,
              text=figures(cell.samples_s))  # fmt: skip
    ends = tuple("?" if end is None else figures(end) for end in (low, high))
    over = interval.over if interval else "too few blocks"
    return Told(bar, (bar.row, bar.group, bar.text, *ends, seconds(cell.step_s), over))


def _energy(cell: Cell, cells: Sequence[Cell], once: Once) -> Told | None:
    costs = [cost for record in cell.records if isinstance(cost := _cost(record, once), Cost)]
    if not costs:
        return None
    used = median([cost.joules_per_sample for cost in costs])
    bar = Bar(row=row_name(cell, cells), group=where(cell, cells), value=used, text=joules(used))
    watts = f"{figures(median([cost.average_w for cost in costs]))} W"
    sources = " ".join(dict.fromkeys(cost.source for cost in costs))
    return Told(bar, (bar.row, bar.group, bar.text, watts, costs[0].part, sources))


def _ceiling(cell: Cell, cells: Sequence[Cell], ceilings: Ceilings, once: Once) -> Told | None:
    found = [_share(record, ceilings, once) for record in cell.records if isinstance(record.outcome, Completed)]
    known = [one for one in found if not isinstance(one, Absent)]
    if not known:
        return None
    part = median([share for _, share, _ in known])
    bar = Bar(row=row_name(cell, cells), group=where(cell, cells), value=part, text=share(part))
    reached, ceiling = median([flops for _, _, flops in known]), known[0][0]
    return Told(bar, (bar.row, bar.group, bar.text, figures(reached / 1e9), figures(ceiling / 1e9)))


def _share(record: BenchRun, ceilings: Ceilings, once: Once) -> tuple[float, float, float] | Absent:
    """The ceiling, the share of it, and the FLOP/s."""
    derived = once.of(record)
    assert derived is not None
    if isinstance(derived.flops_per_s, Absent):
        return derived.flops_per_s
    found = share_of_ceiling(record, derived.flops_per_s, ceilings)
    return found if isinstance(found, Absent) else (*found, derived.flops_per_s)


def _cost(record: BenchRun, once: Once) -> Cost | Absent | None:
    derived = once.of(record)
    return derived.energy if derived else None


def _why_no_energy(cells: Sequence[Cell], once: Once) -> str:
    costs = [_cost(record, once) for cell in cells for record in cell.records]
    reasons = dict.fromkeys(cost.reason for cost in costs if isinstance(cost, Absent))
    return next(iter(reasons), "no cell came to a result")


def _why_no_share(cells: Sequence[Cell], ceilings: Ceilings, once: Once) -> str:
    records = [record for cell in cells for record in cell.records if isinstance(record.outcome, Completed)]
    shares = [_share(record, ceilings, once) for record in records]
    reasons = dict.fromkeys(one.reason for one in shares if isinstance(one, Absent))
    return next(iter(reasons), "no cell came to a result")
