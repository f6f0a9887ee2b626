"""Step times in the order they were measured: does a run slow down?"""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.measurement import BenchRun, Completed
from metalmark.report.charts.figures import Figure, numbers, titled
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, lines_svg
from metalmark.report.charts.thin import Point, thinned
from metalmark.report.units import figures, seconds
from metalmark.results.cells import Cell
from metalmark.stats.drift import Drift, condense, drift, theil_sen
from metalmark.stats.summary import median

HEADERS = ("process", "blocks", "steps", "fastest", "median", "slowest", "last tenth / first", "drift")


def steps_figure(cell: Cell, name: str, *, headed: bool = False) -> Figure | None:
    """Of a cell's processes, each a line; None where none came to its end. `headed`: a heading has the name."""
    runs = [(record, record.outcome) for record in cell.records if isinstance(record.outcome, Completed)]
    runs = [(record, run) for record, run in runs if run.measurement.blocks]
    if not runs:
        return None
    # Small times in their own unit: 0.0012 on an axis says nothing.
    scale, unit = _unit(median([time for _, run in runs for time in _times(run)]))
    lines, rows = [], []
    for record, run in runs[:MOST_LINES]:
        points = _points(run, scale)
        found = drift(_times(run))
        lines.append(Line(name=f"process {record.repeat + 1}", points=points))
        if found is not None and found.significant:
            lines.append(Line(name="drift", points=_trend(points), trend=True))
        rows.append(_row(record, run, found))
    drifting = sum(line.trend for line in lines)
    left_out = f" Of {len(runs)} processes the first {MOST_LINES}." if len(runs) > MOST_LINES else ""
    drifts = " Broken line: the drift, where it is more than noise." if drifting else " None drifts by more than noise."
    return Figure(
        title=titled("Step time", "" if headed else name),
        about=f"Each block's mean step.{drifts}{left_out} {thinned([len(line.points) for line in lines])}".rstrip(),
        label=f"Line chart: step time of {name} over time; {f'{drifting} drift' if drifting else 'no drift'}.",
        svg=lines_svg(lines, Axis("seconds since measuring began"), Axis(f"step, {unit}")),
        numbers=numbers(HEADERS, rows),
    )


def _row(record: BenchRun, run: Completed, found: Drift | None) -> tuple[str, ...]:
    times = _times(run)
    steps = sum(block.steps for block in run.measurement.blocks)
    shown = (seconds(min(times)), seconds(median(times)), seconds(max(times)))
    ratio = figures(found.ratio_last_tenth_to_first) if found else "?"
    change = "too few blocks" if found is None else f"{found.slope_share * 100:+.1f}%" if found.significant else "none"
    return (f"{record.repeat + 1} ({record.id})", f"{len(times):,}", f"{steps:,}", *shown, ratio, change)


def _trend(points: Sequence[Point]) -> tuple[Point, ...]:
    """The robust line of `drift`, over the same medians of runs of neighbours."""
    at, values = condense([x for x, _ in points]), condense([y for _, y in points])
    line = theil_sen(at, values)
    return tuple((x, line.begin + line.slope * (x - at[0])) for x in (points[0][0], points[-1][0]))


def _points(run: Completed, scale: float) -> tuple[Point, ...]:
    blocks = run.measurement.blocks
    return tuple((block.at_s - blocks[0].at_s, block.elapsed_s / block.steps / scale) for block in blocks)


def _times(run: Completed) -> list[float]:
    return [block.elapsed_s / block.steps for block in run.measurement.blocks]


def _unit(step_s: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if step_s >= scale:
            return scale, unit
    return 1e-9, "ns"
