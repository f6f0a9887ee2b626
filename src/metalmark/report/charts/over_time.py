"""Figures over the time of a run: its step times, and what the sensors read in its phases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from metalmark.model.measurement import BenchRun, Completed, Phases
from metalmark.model.run import Series, Telemetry
from metalmark.report.charts.draw import Drawn, Figure, Missing, numbers, titled
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, Point, Span, lines_svg, thinned
from metalmark.report.text.units import figures, reading, seconds
from metalmark.results.cells import Cell
from metalmark.stats.drift import Drift, condense, drift, theil_sen
from metalmark.stats.summary import median

STEP_HEADERS = ("repeat", "blocks", "steps", "fastest", "median", "slowest", "last tenth / first", "drift")
HEADERS = ("series", "source", "readings", "least", "median", "most", "longest gap")
SMALL_BYTES = 2**30
SWAP = "system_swap_used"


class SensorChart(Struct, frozen=True, kw_only=True):
    """A figure of the series of one unit."""

    title: str
    unit: str
    axis: str
    ends: tuple[str, ...]
    """How the names of its series end."""
    scale: float = 1.0
    zero: bool = True
    about: str = ""
    sensors: tuple[str, ...] = ()
    """The sensors that give it: where one gave nothing, the page says why."""


SENSOR_CHARTS = (
    SensorChart(title="GPU utilisation", unit="%", axis="%", ends=("_utilisation",), about="Busy with any work."),
    SensorChart(title="CPU utilisation", unit="%", axis="%", ends=("process_cpu", "system_cpu"),
         about="Process: 100 is one core. System: 100 is all of them.", sensors=("process", "system")),
    SensorChart(title="Power", unit="W", axis="watts", ends=("_power",),
         sensors=("nvidia", "rapl", "macmon", "zeus", "powermetrics")),
    SensorChart(title="Memory", unit="bytes", axis="GiB", ends=("_memory", SWAP), scale=2.0**30, sensors=("process",)),
    SensorChart(title="Temperature", unit="°C", axis="°C", ends=("_temperature",), zero=False),
)  # fmt: skip
NEEDED = {"CPU utilisation", "Power", "Memory"}
"""The page says why one of these is missing; a temperature is a bonus."""


def sensor_figures(record: BenchRun, name: str, *, headed: bool = False) -> list[Drawn]:
    """`headed`: the heading above has the name."""
    run = record.outcome
    phases = phase_spans(run.phases) if isinstance(run, Completed) else []
    return series_figures(record.telemetry, name, spans=phases, headed=headed)


def series_figures(telemetry: Telemetry, name: str, *, spans: Sequence[Span] = (), headed: bool = False) -> list[Drawn]:
    drawn: list[Drawn] = []
    for chart in SENSOR_CHARTS:
        found = [one for one in telemetry.series if _is(one, chart)]
        if found:
            drawn.append(_figure(chart, found, name, spans, titled(chart.title, "" if headed else name)))
        elif chart.title in NEEDED:
            drawn.append(Missing(title=titled(chart.title, "" if headed else name), reason=_why_not(telemetry, chart)))
    return drawn


def phase_spans(phases: Phases) -> list[Span]:
    starts = [
        ("import", phases.import_s), ("build", phases.build_s), ("first step", phases.first_step_s),
        ("warm-up", phases.warmup_s), ("measured", phases.measure_s), ("", phases.end_s),
    ]  # fmt: skip
    ordered = pairwise(starts)
    return [Span(begin, end, name) for (name, begin), (_, end) in ordered if end > begin]


def _figure(chart: SensorChart, found: Sequence[Series], name: str, spans: Sequence[Span], title: str) -> Figure:
    scale, axis = chart.scale, chart.axis
    if chart.unit == "bytes" and max(max(one.values) for one in found) < SMALL_BYTES:
        scale, axis = 2.0**20, "MiB"
    cut = f"Of {len(found)} series the first {MOST_LINES} are drawn." if len(found) > MOST_LINES else ""
    lines = [
        Line(name=one.name.replace("_", " "),
             points=tuple((at, value / scale) for at, value in zip(one.at_s, one.values, strict=True)))
        for one in found[:MOST_LINES]
    ]  # fmt: skip
    sources = ", ".join(dict.fromkeys(one.source for one in found))
    short = thinned([len(line.points) for line in lines])
    return Figure(
        title=title,
        about=" ".join(filter(None, (chart.about, f"From {sources}.", cut, short))),
        label=f"Line chart: {chart.title.lower()} of {name} over the seconds of its process.",
        svg=lines_svg(lines, Axis("seconds since its process began"), Axis(axis, zero=chart.zero), spans=spans),
        numbers=numbers(HEADERS, [_row(one) for one in found], texts=2),
    )


def _row(one: Series) -> tuple[str, ...]:
    shown = (min(one.values), median(one.values), max(one.values))
    words = (reading(value, one.unit) for value in shown)
    gaps = [after - before for before, after in pairwise(one.at_s)]
    return (one.name, one.source, f"{len(one.values):,}", *words, seconds(max(gaps)) if gaps else "?")


def _is(one: Series, chart: SensorChart) -> bool:
    if one.unit != chart.unit or not one.name.endswith(chart.ends) or not one.values:
        return False
    # Swap at 0 is a healthy machine's and says nothing; a GPU at 0 says much.
    return one.name != SWAP or any(one.values)


def _why_not(telemetry: Telemetry, chart: SensorChart) -> str:
    if telemetry.hz is None:
        return "telemetry was switched off"
    absent = [f"{name}: {reason}" for name, reason in telemetry.absent.items() if name in chart.sensors]
    return "; ".join([f"no sensor here gives {chart.axis}", *absent])


def steps_figure(cell: Cell, name: str, *, headed: bool = False) -> Figure | None:
    """Return the step times in the order they were measured, a line per process: does a run slow down? None where no
    process came to its end. `headed`: the heading above has the name."""
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
        lines.append(Line(name=f"repeat {record.repeat + 1}", points=points))
        if found is not None and found.significant:
            lines.append(Line(name="drift", points=_trend(points), trend=True))
        rows.append(_step_row(record, run, found))
    drifting = sum(line.trend for line in lines)
    left_out = f" Of {len(runs)} repeats the first {MOST_LINES}." if len(runs) > MOST_LINES else ""
    drifts = " Broken line: the drift, where it is more than noise." if drifting else " None drifts by more than noise."
    return Figure(
        title=titled("Step time over the run", "" if headed else name),
        about=f"Each block's mean step.{drifts}{left_out} {thinned([len(line.points) for line in lines])}".rstrip(),
        label=f"Line chart: step time of {name} over time; {f'{drifting} drift' if drifting else 'no drift'}.",
        svg=lines_svg(lines, Axis("seconds since measuring began"), Axis(f"step, {unit}")),
        numbers=numbers(STEP_HEADERS, rows),
    )


def _step_row(record: BenchRun, run: Completed, found: Drift | None) -> tuple[str, ...]:
    times = _times(run)
    steps = sum(block.steps for block in run.measurement.blocks)
    shown = (seconds(min(times)), seconds(median(times)), seconds(max(times)))
    ratio = figures(found.ratio_last_tenth_to_first) if found else "?"
    change = "too few blocks" if found is None else f"{found.slope_share * 100:+.1f}%" if found.significant else "none"
    return (f"{record.repeat + 1} ({record.id})", f"{len(times):,}", f"{steps:,}", *shown, ratio, change)


def _trend(points: Sequence[Point]) -> tuple[Point, ...]:
    """The robust line of `drift`, over the same medians of neighbouring blocks."""
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
