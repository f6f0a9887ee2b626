"""Sides as text: a column a training, and below it their curves, each kind on one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from metalmark.model.run import Absent
from metalmark.model.training import Ending, TrainingRun
from metalmark.report.spark import spark
from metalmark.report.table import Table
from metalmark.report.terminal import print_table
from metalmark.report.training_table import percent
from metalmark.report.units import figures, seconds, size
from metalmark.results.training_compare import Side, sides_of, unlike
from metalmark.scrub import printable

BARS = 48
BETWEEN = 3
WHOLE = {Ending.EPOCHS.value, Ending.TARGET.value, Ending.PATIENCE.value}

Figure = Callable[[Side], str]


def print_sides(records: Sequence[TrainingRun], console: Console) -> None:
    """As many to a table as the console is wide; then the notes and the curves of all."""
    sides = sides_of(records)
    tables = side_tables(records, columns=console.width)
    for table in tables:
        print_table(table, console)
    for note in side_notes(records, sides):
        console.print(Text(f"• {printable(note)}"), soft_wrap=True)
    for line in curve_lines(sides):
        console.print(Text(printable(line)), soft_wrap=True)


def side_tables(records: Sequence[TrainingRun], *, columns: int) -> list[Table]:
    """Figures that none of them has are left out: the notes give the reason."""
    sides = sides_of(records)
    rows = [(name, [show(side) for side in sides]) for name, show in FIGURES.items()]
    rows = [(name, cells) for name, cells in rows if name not in OPTIONAL or any(cell != "-" for cell in cells)]
    first = max(len(name) for name, _ in rows)
    widths = [max(len(side.label), *(len(cells[n]) for _, cells in rows)) for n, side in enumerate(sides)]
    return [
        Table(
            headers=("", *(sides[n].label for n in group)),
            numeric=(False, *(True for _ in group)),
            rows=tuple((name, *(cells[n] for n in group)) for name, cells in rows),
            caption=_caption(records),
            notes=(),
        )
        for group in _groups(widths, columns - first - 2)
    ]


def side_notes(records: Sequence[TrainingRun], sides: Sequence[Side]) -> Iterator[str]:
    for side in sides:
        if side.state not in WHOLE:
            yield f"{side.label}: {side.state}.{f' {side.reason}' if side.reason else ''}"
    differing = unlike(records)
    if differing:
        said = "; ".join(f"{name} {' / '.join(values)}" for name, values in differing.items())
        yield f"Not like for like: {said}."
    setting = next((record.setting for record in records if record.setting is not None), None)
    if setting is not None and "samples trained on" not in differing:
        yield (
            f"Data: {setting.data}; {setting.train_samples:,} samples to train, "
            f"{setting.validation_samples:,} others to validate."
        )
    trained = [side for side in sides if side.epochs]
    if trained:
        first = ", ".join(
            f"{side.label} {seconds(side.first_steps_s)}"
            for side in trained
            if not isinstance(side.first_steps_s, Absent)
        )
        yield f"Times are of a mean epoch, without first steps (tracing, compiling, allocating): {first} in all."
    for side in trained:
        yield from (f"{flag.name}: {flag.evidence} ({side.label})." for flag in side.flags)
    yield from _absences(trained)
    sources = dict.fromkeys(
        f"{side.power.part}: {side.power.source}" for side in trained if not isinstance(side.power, Absent)
    )
    if sources:
        yield f"Power and energy of {'; '.join(sources)}."
    said_once: dict[str, list[str]] = {}
    for record, side in zip(records, sides, strict=True):
        for note in record.setting.notes if record.setting is not None else ():
            said_once.setdefault(note, []).append(side.label)
    yield from (f"{', '.join(who)}: {note}" for note, who in said_once.items())


def curve_lines(sides: Sequence[Side], width: int = BARS) -> Iterator[str]:
    trained = [side for side in sides if side.epochs]
    yield from _curves("validation accuracy", trained, lambda side: side.accuracies, percent, width)
    yield from _curves("validation loss", trained, lambda side: side.validation_losses, "{:.4f}".format, width)
    busy = [side for side in trained if side.busy_percent]
    if busy:
        yield ""
        yield "utilisation over time, from 0 to 100%"
        pad = max(len(side.label) for side in busy)
        for side in busy:
            line = spark([min(value, 100.0) for value in side.busy_percent], width, scale=(0.0, 100.0))
            yield f"  {side.label:<{pad}}  {line}"


def _curves(
    name: str,
    sides: Sequence[Side],
    curve: Callable[[Side], Sequence[float]],
    show: Callable[[float], str],
    width: int,
) -> Iterator[str]:
    if not sides:
        return
    values = [value for side in sides for value in curve(side)]
    scale = min(values), max(values)
    longest = max(len(curve(side)) for side in sides)
    # The same epoch stands below itself: a shorter training is a shorter line.
    each = 1.0 if longest <= width else width / longest
    pad = max(len(side.label) for side in sides)
    yield ""
    yield f"{name} over epochs, from {show(scale[0])} to {show(scale[1])}"
    for side in sides:
        values = list(curve(side))
        line = spark(values, max(1, round(len(values) * each)), scale=scale)
        yield f"  {side.label:<{pad}}  {line}  {show(values[0])} → {show(values[-1])}"


def _absences(sides: Sequence[Side]) -> Iterator[str]:
    for what in ("utilisation", "power", "memory_bytes"):
        reasons: dict[str, list[str]] = {}
        for side in sides:
            value = getattr(side, what)
            if isinstance(value, Absent):
                reasons.setdefault(value.reason, []).append(side.label)
        for reason, who in reasons.items():
            yield f"{NAMES[what]} unknown on {', '.join(who)}: {reason}."


def _caption(records: Sequence[TrainingRun]) -> str:
    plan = records[0].plan
    settings = plan.settings.changed()
    same = {name: value for name, value in settings.items() if all(_has(record, name, value) for record in records)}
    changed = "".join(f", {name} {value}" for name, value in same.items())
    batch = f", batch {plan.params['batch_size']}" if "batch_size" in plan.params else ""
    differing = unlike(records)
    parts = [
        plan.workload if "workload" not in differing else "trainings",
        batch if "batch_size" not in differing else "",
        changed,
        f", seed {plan.seed}" if "seed" not in differing else "",
    ]
    return "".join(parts)


def _has(record: TrainingRun, name: str, value: str) -> bool:
    return record.plan.settings.changed().get(name) == value


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    groups: list[list[int]] = []
    left = 0
    for number, width in enumerate(widths):
        needed = width + BETWEEN
        if not groups or needed > left:
            groups.append([])
            left = room
        groups[-1].append(number)
        left -= needed
    return groups


def _time(name: str) -> Figure:
    def show(side: Side) -> str:
        value = getattr(side, name)
        return "-" if isinstance(value, Absent) else seconds(value)

    return show


def _epochs(side: Side) -> str:
    if not side.epochs:
        return side.state
    return f"{side.epochs} of {side.of_epochs}" + ("" if side.state in WHOLE else f", {side.state}")


def _best(side: Side) -> str:
    return "-" if isinstance(side.accuracy, Absent) else f"{percent(side.accuracy)} (epoch {side.best_epoch})"


def _pace(side: Side) -> str:
    return "-" if isinstance(side.samples_s, Absent) else figures(side.samples_s)


def _busy(side: Side) -> str:
    used = side.utilisation
    return "-" if isinstance(used, Absent) else f"{used.percent:.0f}% of {used.of}"


def _power(side: Side) -> str:
    return "-" if isinstance(side.power, Absent) else f"{figures(side.power.average_w)} W{_estimate(side)}"


def _energy(side: Side) -> str:
    return "-" if isinstance(side.power, Absent) else f"{figures(side.power.joules)} J{_estimate(side)}"


def _estimate(side: Side) -> str:
    return " (est.)" if not isinstance(side.power, Absent) and side.power.modelled else ""


def _memory(side: Side) -> str:
    return "-" if isinstance(side.memory_bytes, Absent) else size(side.memory_bytes)


FIGURES: dict[str, Figure] = {
    "epochs": _epochs,
    "best accuracy": _best,
    "epoch": _time("epoch_s"),
    "  input": _time("input_s"),
    "  compute": _time("compute_s"),
    "  validation": _time("validation_s"),
    "samples/s": _pace,
    "utilisation": _busy,
    "power": _power,
    "energy": _energy,
    "memory": _memory,
    "flags": lambda side: ", ".join(flag.name for flag in side.flags) or "-",
}
OPTIONAL = {"utilisation", "power", "energy", "memory", "flags"}
NAMES = {"utilisation": "Utilisation", "power": "Power and energy", "memory_bytes": "Memory"}
