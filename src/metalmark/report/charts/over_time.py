"""Figures over the time of a run: its step times, what the sensors read in its phases, and the curves of a training."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun, Completed, Phases
from metalmark.model.parity import ParityRun
from metalmark.model.run import Absent, Series, Telemetry
from metalmark.model.training import ACCURACY, TRAIN_LOSS, VALIDATION_LOSS, TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.model.watch import Curve, WatchedRun
from metalmark.report.charts.draw import Drawn, Figure, Missing, numbers
from metalmark.report.charts.explain import explanation_figures, script_figures
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, Point, Span, lines_svg, thinned, wants_log
from metalmark.report.charts.parity import parity_figures
from metalmark.report.charts.tune import tuning_figures
from metalmark.report.text.tables import Table
from metalmark.report.text.units import figures, grouped, known, metric_value, percent, prefix_of, reading, seconds
from metalmark.results.cells import Cell
from metalmark.stats.drift import Drift, condense, drift, theil_sen
from metalmark.stats.summary import median
from metalmark.training.derived import figure, samples_s

STEP_HEADERS = ("repeat", "blocks", "steps", "fastest", "median", "slowest", "last tenth / first", "drift")
HEADERS = ("series", "source", "readings", "least", "median", "most", "longest gap")
SMALL_BYTES = 2**30
SWAP = "system_swap_used"
EPOCHS = ("training", "epoch", "train loss", "validation loss", "accuracy")
TIMES = ("epoch", "input", "compute", "validation", "samples/s")
STEPS = ("line", "steps", "first", "lowest", "last")
TRAIN, VALIDATION = "training", "validation"


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
    """The sensors that give it: where none gave anything, the page says why. A temperature is a bonus."""


SENSOR_CHARTS = (
    SensorChart(title="GPU utilisation", unit="%", axis="%", ends=("_utilisation",), about="Busy with any work."),
    SensorChart(title="CPU utilisation", unit="%", axis="%", ends=("process_cpu", "system_cpu"),
         about="Process: 100 is one core. System: 100 is all of them.", sensors=("process", "system")),
    SensorChart(title="Power", unit="W", axis="watts", ends=("_power",),
         sensors=("nvidia", "rapl", "macmon", "zeus", "powermetrics")),
    SensorChart(title="Memory", unit="bytes", axis="GiB", ends=("_memory", SWAP), scale=2.0**30, sensors=("process",)),
    SensorChart(title="Temperature", unit="°C", axis="°C", ends=("_temperature",), zero=False),
)  # fmt: skip


def run_figures(run: AnyRun) -> list[Drawn]:
    """Return every figure of one run, for a page whose heading has its name."""
    if isinstance(run, WatchedRun):
        return [*script_figures(run), *watched_figures(run), *series_figures(run.telemetry, run.name, headed=True)]
    if isinstance(run, BenchRun):
        done = isinstance(run.outcome, Completed)
        return cell_figures(Cell(plan=run.plan, records=(run,)), run.plan.label) if done else []
    if isinstance(run, ParityRun):
        return parity_figures(run)
    if isinstance(run, ExplanationRun):
        return [*explanation_figures(run), *series_figures(run.telemetry, run.subject, headed=True)]
    if isinstance(run, TuningRun):
        # What the sensors read is with its trials.
        sensors = series_figures(run.telemetry, run.plan.label, headed=True) if run.telemetry.series else []
        return [*tuning_figures(run), *sensors]
    drawn: list[Drawn] = [*training_figures(run)]
    for number, session in enumerate(run.sessions):
        which = f", session {number + 1}" if len(run.sessions) > 1 else ""
        own = [epoch for epoch in run.epochs if epoch.session == number]
        spans = [Span(epoch.begin_s, epoch.end_s, f"epoch {epoch.number}") for epoch in own]
        drawn += series_figures(session.telemetry, f"{training_name(run)}{which}", spans=spans, headed=not which)
    return drawn


def cell_figures(cell: Cell, name: str) -> list[Drawn]:
    """Return the step times of a cell, and the sensors of its first run; the heading above has the name."""
    steps = steps_figure(cell, name, headed=True)
    return [*([steps] if steps else []), *sensor_figures(cell.records[0], name, headed=True)]


def sensor_figures(record: BenchRun, name: str, *, headed: bool = False) -> list[Drawn]:
    """`headed`: the heading above has the name."""
    phases = phase_spans(record.outcome.phases) if isinstance(record.outcome, Completed) else []
    return series_figures(record.telemetry, name, spans=phases, headed=headed)


def series_figures(telemetry: Telemetry, name: str, *, spans: Sequence[Span] = (), headed: bool = False) -> list[Drawn]:
    drawn: list[Drawn] = []
    for chart in SENSOR_CHARTS:
        title = chart.title if headed else f"{chart.title}: {name}"
        named = [one for one in telemetry.series if one.unit == chart.unit and one.name.endswith(chart.ends)]
        # Swap at 0 is a healthy machine's and says nothing; a GPU at 0 says much.
        found = [one for one in named if one.values and (one.name != SWAP or any(one.values))]
        absent = [f"{name}: {reason}" for name, reason in telemetry.absent.items() if name in chart.sensors]
        reason = "; ".join([f"no sensor here gives {chart.axis}", *absent])
        if found:
            drawn.append(_figure(chart, found, name, spans, title))
        elif chart.sensors:
            drawn.append(Missing(title=title, reason="telemetry was switched off" if telemetry.hz is None else reason))
    return drawn


def phase_spans(phases: Phases) -> list[Span]:
    names = ("import", "build", "first step", "warm-up", "measured")
    starts = (phases.import_s, phases.build_s, phases.first_step_s, phases.warmup_s, phases.measure_s, phases.end_s)
    return [Span(begin, end, name) for (begin, end), name in zip(pairwise(starts), names, strict=True) if end > begin]


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


def steps_figure(cell: Cell, name: str, *, headed: bool = False) -> Figure | None:
    """Return the step times in the order they were measured, a line per process: does a run slow down? None where no
    process came to its end. `headed`: the heading above has the name."""
    runs = [(record, record.outcome) for record in cell.records if isinstance(record.outcome, Completed)]
    runs = [(record, run) for record, run in runs if run.measurement.blocks]
    if not runs:
        return None
    # Small times in their own unit: 0.0012 on an axis says nothing.
    scale, prefix = prefix_of(median([time for _, run in runs for time in _times(run)]))
    lines, rows = [], []
    for record, run in runs[:MOST_LINES]:
        times, begin_s = _times(run), run.measurement.blocks[0].at_s
        points = tuple(
            (block.at_s - begin_s, time / scale) for block, time in zip(run.measurement.blocks, times, strict=True)
        )
        found = drift(times)
        lines.append(Line(name=f"repeat {record.repeat + 1}", points=points))
        if found is not None and found.significant:
            lines.append(Line(name="drift", points=_trend(points), trend=True))
        rows.append(_step_row(record, run, found))
    drifting = sum(line.trend for line in lines)
    left_out = f" Of {len(runs)} repeats the first {MOST_LINES}." if len(runs) > MOST_LINES else ""
    drifts = " Broken line: the drift, where it is more than noise." if drifting else " None drifts by more than noise."
    return Figure(
        title="Step time over the run" if headed else f"Step time over the run: {name}",
        about=f"Each block's mean step.{drifts}{left_out} {thinned([len(line.points) for line in lines])}".rstrip(),
        label=f"Line chart: step time of {name} over time; {f'{drifting} drift' if drifting else 'no drift'}.",
        svg=lines_svg(lines, Axis("seconds since measuring began"), Axis(f"step, {prefix}s")),
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


def _times(run: Completed) -> list[float]:
    return [block.elapsed_s / block.steps for block in run.measurement.blocks]


def training_name(record: TrainingRun, *, workload: bool = True) -> str:
    plan = record.plan
    changed = "".join(f", {value}" for value in plan.settings.changed().values())
    lead = f"{plan.workload}, " if workload else ""
    return f"{lead}{plan.framework} {plan.device}{changed} ({record.id[:4]})"


def together_figures(records: Sequence[TrainingRun]) -> list[Drawn]:
    """Return the accuracy and the validation loss of each training over its epochs, one figure each per workload."""
    drawn: list[Drawn] = []
    for workload, group in grouped((run.plan.workload, run) for run in records if run.epochs).items():
        for at in range(0, len(group), MOST_LINES):
            drawn += _over_epochs(workload, group[at : at + MOST_LINES])
    return drawn or [Missing(title="Training curves", reason="no training came to the end of an epoch")]


def training_figures(record: TrainingRun) -> list[Drawn]:
    """Return the loss of each step of one training, and where the time of its epochs went."""
    name = training_name(record)
    steps = [loss for epoch in record.epochs for loss in epoch.losses]
    losses = tuple((float(step), loss) for step, loss in enumerate(steps, start=1))
    if not losses or not record.epochs:
        return [Missing(title=f"Training curves: {name}", reason="it ended before its first epoch did")]
    line = Line(name=TRAIN, points=losses)
    shown = Figure(
        title="Training loss over the steps",
        about=" ".join(filter(None, ("The mean over a step's batch, before its update.", thinned([len(losses)])))),
        label=f"Line chart: loss of each of {len(losses):,} steps of {name}.",
        svg=lines_svg([line], Axis("step"), _loss_axis([line])),
        numbers=_step_numbers(name, losses),
    )
    return [shown, _epoch_times(record, name)]


def watched_figures(run: WatchedRun) -> list[Drawn]:
    drawn: list[Drawn] = [_watched(run, curve) for curve in run.curves if any(v is not None for v in curve.values)]
    return drawn or [Missing(title=f"Training curves: {run.name}", reason="the loop logged no number")]


def _over_epochs(workload: str, runs: Sequence[TrainingRun]) -> Iterator[Figure]:
    """The accuracy of each training; both losses of a single one, of several only the validation loss, or nobody could
    tell the lines apart."""
    names = [training_name(run, workload=False) for run in runs]
    rows = [
        (
            name,
            str(epoch.number),
            f"{epoch.train_loss:.4f}",
            known(epoch.validation_loss, "{:.4f}".format),
            percent(epoch.accuracy),
        )
        for name, run in zip(names, runs, strict=True)
        for epoch in run.epochs
    ]
    targets = {run.goal.target_accuracy for run in runs}
    target = targets.pop() if len(targets) == 1 else None
    level = "" if target is None else f" Broken line across: the target, {percent(target)}."
    lines = _known_lines(_line(name, run, ACCURACY) for name, run in zip(names, runs, strict=True))
    if lines:
        yield Figure(
            title=f"Validation accuracy: {workload}",
            about=f"Share of the validation samples, after each epoch.{level}",
            label=f"Line chart: validation accuracy of {len(lines)} trainings of {workload} over their epochs.",
            svg=lines_svg(lines, Axis("epoch", whole=True), Axis("accuracy", percent=True), points=True, level=target),
            numbers=numbers(EPOCHS, rows),
        )
    for metric in dict.fromkeys(metric for run in runs for epoch in run.epochs for metric in epoch.metrics):
        lines = _known_lines(_line(name, run, metric) for name, run in zip(names, runs, strict=True))
        values = [(line.name, f"{x:g}", metric_value(metric, y)) for line in lines for x, y in line.points]
        yield Figure(
            title=f"Validation {metric}: {workload}",
            about=f"The {metric} of validation, after each epoch.",
            label=f"Line chart: validation {metric} of {len(lines)} trainings of {workload} over their epochs.",
            svg=lines_svg(lines, Axis("epoch", whole=True), Axis(metric), points=True),
            numbers=numbers(("training", "epoch", metric), values),
        )
    lines = _known_lines(_line(name, run, VALIDATION_LOSS) for name, run in zip(names, runs, strict=True))
    which = "Validation loss"
    if len(runs) == 1:
        lines = _known_lines([_line(TRAIN, runs[0], TRAIN_LOSS), _line(VALIDATION, runs[0], VALIDATION_LOSS)])
        which = "Training and validation loss" if len(lines) > 1 else "Training loss"
    if not lines:
        return
    yield Figure(
        title=f"{which}: {workload}",
        about="The mean over each epoch's samples.",
        label=f"Line chart: {which.lower()} of {workload} over the epochs.",
        svg=lines_svg(lines, Axis("epoch", whole=True), _loss_axis(lines), points=True),
        numbers=numbers(EPOCHS, rows),
    )


def _line(name: str, run: TrainingRun, what: str) -> Line:
    values = [(float(epoch.number), figure(epoch, what)) for epoch in run.epochs]
    return Line(name=name, points=tuple((x, y) for x, y in values if not isinstance(y, Absent)))


def _known_lines(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.points]


def _epoch_times(record: TrainingRun, name: str) -> Figure:
    parts = ("input", "compute", "validation")
    lines = [
        Line(name=part, points=tuple((float(one.number), getattr(one, f"{part}_s")) for one in record.epochs))
        for part in parts
    ]
    rows = [
        (str(epoch.number), seconds(epoch.input_s), seconds(epoch.compute_s), seconds(epoch.validation_s),
         known(samples_s(epoch), figures))
        for epoch in record.epochs
    ]  # fmt: skip
    return Figure(
        title="Time per epoch",
        about="Seconds spent waiting for batches, computing and validating.",
        label=f"Line chart: seconds of each epoch of {name} spent on input, compute and validation.",
        svg=lines_svg(lines, Axis("epoch", whole=True), Axis("seconds", zero=True), points=True),
        numbers=numbers(TIMES, rows),
    )


def _watched(run: WatchedRun, curve: Curve) -> Figure:
    pairs = zip(curve.steps, curve.values, strict=True)
    points = tuple((float(step), value) for step, value in pairs if value is not None)
    lost = len(curve.values) - len(points)
    said = (f"{lost} values were not finite." if lost else "", thinned([len(points)]))
    return Figure(
        title=curve.name,
        about=" ".join(filter(None, ("As the loop logged it.", *said))),
        label=f"Line chart: {curve.name} of the watched run {run.name} over its steps.",
        svg=lines_svg([Line(name=curve.name, points=points)], Axis("step"), Axis(curve.name)),
        numbers=_step_numbers(curve.name, points),
    )


def _loss_axis(lines: Sequence[Line]) -> Axis:
    log = wants_log([y for line in lines for _, y in line.points])
    return Axis("loss, logarithmic" if log else "loss", log=log)


def _step_numbers(name: str, points: Sequence[Point]) -> Table:
    values = [y for _, y in points]
    told = (values[0], min(values), values[-1])
    return numbers(STEPS, [(name, f"{len(points):,}", *(f"{value:.4g}" for value in told))])
