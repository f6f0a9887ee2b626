"""Trainings side by side: a column per training, and below the table their curves, each kind on one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from metalmark.errors import UsageError
from metalmark.model.plan import word
from metalmark.model.run import Absent
from metalmark.model.training import Ending, TrainingRun
from metalmark.report.compare_page import comparison_answer
from metalmark.report.text.tables import Table
from metalmark.report.text.units import figures, percent, seconds, size, spark
from metalmark.results.comparison import compare_runs
from metalmark.results.derived import TrainingFigures, training_figures
from metalmark.results.measured import samples_by_seed, training_question
from metalmark.results.pairing import Side, shown

BARS = 48
BETWEEN = 3
WHOLE = {Ending.EPOCHS.value, Ending.TARGET.value, Ending.PATIENCE.value}

Figure = Callable[[TrainingFigures], str]


def sides_of(runs: Sequence[TrainingRun]) -> list[TrainingFigures]:
    """The figures of each training, with its seed in its label where the seeds differ."""
    sides = [training_figures(run) for run in runs]
    if len({side.seed for side in sides}) < 2:
        return sides
    return [replace(side, label=f"{side.label} seed {side.seed}") for side in sides]


def side_answers(runs: Sequence[TrainingRun]) -> list[str]:
    """How each framework and device compares with the first, as `metalmark compare` says it."""
    groups: dict[str, list[TrainingRun]] = {}
    for run in runs:
        if run.epochs:
            groups.setdefault(training_figures(run).label, []).append(run)
    if len(groups) < 2:
        return []
    try:
        found, _ = compare_runs([Side.of_runs(label, group) for label, group in groups.items()])
    except UsageError:  # they are not like for like; the notes say in what
        return []
    return [comparison_answer(one) for one in found]


def side_tables(runs: Sequence[TrainingRun], *, columns: int) -> list[Table]:
    """A column per training, as many per table as there is room for; the answer stands above the first table, the notes
    and the curves of all below the last. Figures that no training has are left out: the notes give the reason."""
    sides = sides_of(runs)
    rows = [(name, [show(side) for side in sides]) for name, show in FIGURES.items()]
    rows = [(name, cells) for name, cells in rows if name not in OPTIONAL or any(cell != "-" for cell in cells)]
    first = max(len(name) for name, _ in rows)
    widths = [max(len(sides[n].label), *(len(cells[n]) for _, cells in rows)) for n in range(len(sides))]
    groups = _groups(widths, columns - first - 2)
    return [
        Table(
            headers=("", *(sides[n].label for n in group)),
            numeric=(False, *(True for _ in group)),
            rows=tuple((name, *(cells[n] for n in group)) for name, cells in rows),
            caption=" ".join([*(side_answers(runs) if group is groups[0] else ()), _caption(runs)]),
            notes=tuple(side_notes(runs)) if group is groups[-1] else (),
            lines=tuple(curve_lines(sides)) if group is groups[-1] else (),
        )
        for group in groups
    ]


def side_notes(runs: Sequence[TrainingRun]) -> Iterator[str]:
    sides = sides_of(runs)
    for side in sides:
        if side.state not in WHOLE:
            yield f"{side.label}: {side.state}.{f' {side.reason}' if side.reason else ''}"
    differing = unlike(runs)
    if differing:
        said = "; ".join(f"{shown(name)} {' / '.join(values)}" for name, values in differing.items())
        yield f"Not like for like: {said}."
    setting = next((run.setting for run in runs if run.setting is not None), None)
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
        f"{side.energy.part}: {side.energy.source}" for side in trained if not isinstance(side.energy, Absent)
    )
    if sources:
        yield f"Power and energy of {'; '.join(sources)}."
    said_once: dict[str, list[str]] = {}
    for run, side in zip(runs, sides, strict=True):
        for note in run.setting.notes if run.setting is not None else ():
            said_once.setdefault(note, []).append(side.label)
    yield from (f"{', '.join(dict.fromkeys(labels))}: {note}" for note, labels in said_once.items())


def unlike(runs: Sequence[TrainingRun]) -> dict[str, tuple[str, ...]]:
    """What differs between those that trained, besides framework, device and seed, with the values in their order."""
    trained = [run for run in runs if run.epochs]
    every = [
        {
            **training_question(run),
            **{name: word(getattr(run.plan.settings, name)) for name in run.plan.settings.__struct_fields__},
            **({"chip": run.sessions[0].machine.chip} if run.sessions else {}),
        }
        for run in trained
    ]
    found = {key: [keys[key] for keys in every if key in keys] for keys in every for key in keys}
    # Made-up samples and many splits depend on the seed: only those of one seed must be the same.
    found["samples trained on"] = next((sorted(one) for one in samples_by_seed(trained).values() if len(one) > 1), [])
    return {key: tuple(values) for key, values in found.items() if len(set(values)) > 1}


def curve_lines(sides: Sequence[TrainingFigures], width: int = BARS) -> Iterator[str]:
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
    sides: Sequence[TrainingFigures],
    curve: Callable[[TrainingFigures], Sequence[float]],
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


def _absences(sides: Sequence[TrainingFigures]) -> Iterator[str]:
    for what in ("utilisation", "energy", "memory_bytes"):
        reasons: dict[str, list[str]] = {}
        for side in sides:
            value = getattr(side, what)
            if isinstance(value, Absent):
                reasons.setdefault(value.reason, []).append(side.label)
        for reason, who in reasons.items():
            yield f"{NAMES[what]} unknown on {', '.join(who)}: {reason}."


def _caption(runs: Sequence[TrainingRun]) -> str:
    plan = runs[0].plan
    settings = plan.settings.changed()
    same = {name: value for name, value in settings.items() if all(_has(run, name, value) for run in runs)}
    changed = "".join(f", {name} {value}" for name, value in same.items())
    batch = f", batch {plan.params['batch_size']}" if "batch_size" in plan.params else ""
    differing = unlike(runs)
    parts = [
        plan.workload if "workload" not in differing else "trainings",
        batch if "batch_size" not in differing else "",
        changed,
        f", seed {plan.seed}" if len({run.plan.seed for run in runs}) == 1 else "",
    ]
    return "".join(parts)


def _has(run: TrainingRun, name: str, value: str) -> bool:
    return run.plan.settings.changed().get(name) == value


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
    def show(side: TrainingFigures) -> str:
        value = getattr(side, name)
        return "-" if isinstance(value, Absent) else seconds(value)

    return show


def _epochs(side: TrainingFigures) -> str:
    if not side.epochs:
        return side.state
    return f"{side.epochs} of {side.of_epochs}" + ("" if side.state in WHOLE else f", {side.state}")


def _best(side: TrainingFigures) -> str:
    return "-" if isinstance(side.accuracy, Absent) else f"{percent(side.accuracy)} (epoch {side.best_epoch})"


def _pace(side: TrainingFigures) -> str:
    return "-" if isinstance(side.samples_s, Absent) else figures(side.samples_s)


def _busy(side: TrainingFigures) -> str:
    used = side.utilisation
    return "-" if isinstance(used, Absent) else f"{used.percent:.0f}% of {used.of}"


def _power(side: TrainingFigures) -> str:
    return "-" if isinstance(side.energy, Absent) else f"{figures(side.energy.average_w)} W{_estimate(side)}"


def _energy(side: TrainingFigures) -> str:
    return "-" if isinstance(side.energy, Absent) else f"{figures(side.energy.joules)} J{_estimate(side)}"


def _estimate(side: TrainingFigures) -> str:
    return " (est.)" if not isinstance(side.energy, Absent) and side.energy.modelled else ""


def _memory(side: TrainingFigures) -> str:
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
NAMES = {"utilisation": "Utilisation", "energy": "Power and energy", "memory_bytes": "Memory"}
