"""Training curves: of `metalmark train`, and of watched runs."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.model.run import Absent
from metalmark.model.training import Epoch, TrainingRun
from metalmark.model.watch import Curve, WatchedRun
from metalmark.report.charts.draw import Drawn, Figure, Missing, numbers
from metalmark.report.charts.lines import MOST_LINES, Axis, Line, Point, lines_svg, thinned, wants_log
from metalmark.report.text.units import figures, seconds
from metalmark.training.derived import samples_s

EPOCHS = ("training", "epoch", "train loss", "validation loss", "accuracy")
TIMES = ("epoch", "input", "compute", "validation", "samples/s")
STEPS = ("line", "steps", "first", "lowest", "last")
TRAIN, VALIDATION = "training", "validation"


def training_name(record: TrainingRun, *, workload: bool = True) -> str:
    plan = record.plan
    changed = "".join(f", {value}" for value in plan.settings.changed().values())
    lead = f"{plan.workload}, " if workload else ""
    return f"{lead}{plan.framework} {plan.device}{changed} ({record.id[:4]})"


def together_figures(records: Sequence[TrainingRun]) -> list[Drawn]:
    """Return the accuracy and the validation loss of each training over its epochs, one figure each per workload."""
    groups: dict[str, list[TrainingRun]] = {}
    for record in records:
        if record.epochs:
            groups.setdefault(record.plan.workload, []).append(record)
    drawn: list[Drawn] = []
    for workload, group in groups.items():
        for at in range(0, len(group), MOST_LINES):
            part = group[at : at + MOST_LINES]
            drawn += [_accuracy(workload, part), _losses(workload, part)]
    return drawn or [Missing(title="Training curves", reason="no training came to the end of an epoch")]


def training_figures(record: TrainingRun) -> list[Drawn]:
    """Return the loss of each step of one training, and where the time of its epochs went."""
    name = training_name(record)
    losses = tuple((float(step), loss) for step, loss in enumerate(_steps(record), start=1))
    if not losses or not record.epochs:
        return [Missing(title=f"Training curves: {name}", reason="it ended before its first epoch did")]
    line = Line(name=TRAIN, points=losses)
    row = (name, f"{len(losses):,}", *(f"{value:.4g}" for value in _told(losses)))
    shown = Figure(
        title="Training loss over the steps",
        about=" ".join(filter(None, ("The mean over a step's batch, before its update.", thinned([len(losses)])))),
        label=f"Line chart: loss of each of {len(losses):,} steps of {name}.",
        svg=lines_svg([line], Axis("step"), _loss_axis([line])),
        numbers=numbers(STEPS, [row]),
    )
    return [shown, _times(record, name)]


def watched_figures(run: WatchedRun) -> list[Drawn]:
    drawn: list[Drawn] = [_watched(run, curve) for curve in run.curves if any(v is not None for v in curve.values)]
    return drawn or [Missing(title=f"Training curves: {run.name}", reason="the loop logged no number")]


def _accuracy(workload: str, runs: Sequence[TrainingRun]) -> Figure:
    targets = {run.goal.target_accuracy for run in runs}
    target = targets.pop() if len(targets) == 1 else None
    level = "" if target is None else f" Broken line across: the target, {target * 100:.2f}%."
    lines = [_line(training_name(run, workload=False), run, "accuracy") for run in runs]
    return Figure(
        title=f"Validation accuracy: {workload}",
        about=f"Share of the validation samples, after each epoch.{level}",
        label=f"Line chart: validation accuracy of {len(lines)} trainings of {workload} over their epochs.",
        svg=lines_svg(lines, Axis("epoch", whole=True), Axis("accuracy", percent=True), points=True, level=target),
        numbers=numbers(EPOCHS, [_epoch(run, epoch) for run in runs for epoch in run.epochs]),
    )


def _losses(workload: str, runs: Sequence[TrainingRun]) -> Figure:
    """Return both losses of one training; of several only the validation loss, or nobody could tell the lines apart."""
    lines = [_line(training_name(run, workload=False), run, "validation_loss") for run in runs]
    which = "Validation loss"
    if len(runs) == 1:
        lines = [_line(TRAIN, runs[0], "train_loss"), _line(VALIDATION, runs[0], "validation_loss")]
        which = "Training and validation loss"
    return Figure(
        title=f"{which}: {workload}",
        about="The mean over each epoch's samples.",
        label=f"Line chart: {which.lower()} of {workload} over the epochs.",
        svg=lines_svg(lines, Axis("epoch", whole=True), _loss_axis(lines), points=True),
        numbers=numbers(EPOCHS, [_epoch(run, epoch) for run in runs for epoch in run.epochs]),
    )


def _line(name: str, run: TrainingRun, figure: str) -> Line:
    return Line(name=name, points=tuple((float(epoch.number), getattr(epoch, figure)) for epoch in run.epochs))


def _times(record: TrainingRun, name: str) -> Figure:
    lines = [_line(part, record, f"{part}_s") for part in ("input", "compute", "validation")]
    rows = []
    for epoch in record.epochs:
        pace = samples_s(epoch)
        shown = (seconds(epoch.input_s), seconds(epoch.compute_s), seconds(epoch.validation_s))
        rows.append((str(epoch.number), *shown, "-" if isinstance(pace, Absent) else figures(pace)))
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
        numbers=numbers(STEPS, [(curve.name, f"{len(points):,}", *(f"{value:.4g}" for value in _told(points)))]),
    )


def _loss_axis(lines: Sequence[Line]) -> Axis:
    log = wants_log([y for line in lines for _, y in line.points])
    return Axis("loss, logarithmic" if log else "loss", log=log)


def _steps(record: TrainingRun) -> list[float]:
    return [loss for epoch in record.epochs for loss in epoch.losses]


def _told(points: Sequence[Point]) -> tuple[float, float, float]:
    values = [y for _, y in points]
    return values[0], min(values), values[-1]


def _epoch(record: TrainingRun, epoch: Epoch) -> tuple[str, ...]:
    losses = (f"{epoch.train_loss:.4f}", f"{epoch.validation_loss:.4f}")
    return (training_name(record, workload=False), str(epoch.number), *losses, f"{epoch.accuracy * 100:.2f}%")
