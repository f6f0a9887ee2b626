"""Trainings side by side: a column per training, and below the table their curves, each kind on one scale."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from metalmark.model.plan import word
from metalmark.model.run import Absent
from metalmark.model.training import ACCURACY, Ending, TrainingRun, TrainingSetup
from metalmark.report.compare_answer import comparison_answer, try_to_compare
from metalmark.report.text.tables import Table
from metalmark.report.text.units import figures, grouped, known, metric_value, percent, seconds, size, spark
from metalmark.results.derived import TrainingFigures, training_figures
from metalmark.results.measured import samples_by_seed, training_question
from metalmark.results.pairing import Side, shown

BARS = 48
CURVE_ENDS = 24
"""Characters around the label and the bars of a curve: its first and its last value."""
BETWEEN = 3
WHOLE = {Ending.EPOCHS.value, Ending.TARGET.value, Ending.PATIENCE.value}


def sides_of(runs: Sequence[TrainingRun]) -> list[TrainingFigures]:
    """The figures of each training, with its seed in its label where the seeds differ."""
    sides = [training_figures(run) for run in runs]
    if len({side.seed for side in sides}) < 2:
        return sides
    return [replace(side, label=f"{side.label} seed {side.seed}") for side in sides]


def side_answers(runs: Sequence[TrainingRun]) -> list[str]:
    """How each framework and device compares with the first, as `metalmark compare` says it."""
    groups = grouped((training_figures(run).label, run) for run in runs if run.epochs)
    sides = [Side.of_runs(label, group) for label, group in groups.items()]
    return [comparison_answer(one) for one in try_to_compare(sides)] if len(sides) > 1 else []


def side_tables(runs: Sequence[TrainingRun], *, columns: int) -> list[Table]:
    """A column per training, as many per table as there is room for; the answer stands above the first table, the notes
    and the curves of all below the last. Figures that no training has are left out: the notes give the reason."""
    sides = sides_of(runs)
    rows = [(name, [show(side) for side in sides]) for name, show in SIDE_FIGURES.items()]
    rows = [(name, cells) for name, cells in rows if name not in OPTIONAL or any(cell != "-" for cell in cells)]
    first = max(len(name) for name, _ in rows)
    widths = [max(len(sides[n].label), *(len(cells[n]) for _, cells in rows)) for n in range(len(sides))]
    groups, longest = _groups(widths, columns - first - 2), max(len(side.label) for side in sides)
    return [
        Table(
            headers=("", *(sides[n].label for n in group)),
            numeric=(False, *(True for _ in group)),
            rows=tuple((name, *(cells[n] for n in group)) for name, cells in rows),
            caption="\n".join([*(side_answers(runs) if group is groups[0] else ()), _caption(runs)]),
            notes=tuple(side_notes(runs)) if group is groups[-1] else (),
            lines=tuple(curve_lines(sides, min(BARS, max(columns - longest - CURVE_ENDS, 8))))
            if group is groups[-1]
            else (),
        )
        for group in groups
    ]


def side_notes(runs: Sequence[TrainingRun]) -> Iterator[str]:
    sides = sides_of(runs)
    for side in sides:
        if side.state not in WHOLE:
            yield f"{side.label}: {side.state}.{f' {side.reason}' if side.reason else ''}"
    if differing := unlike(runs):
        said = "; ".join(f"{shown(name)} {' / '.join(values)}" for name, values in differing.items())
        yield f"Not like for like: {said}."
    setting = next((run.setting for run in runs if run.setting is not None), None)
    if setting is not None and "samples trained on" not in differing:
        yield data_note(setting)
    trained = [side for side in sides if side.epochs]
    if trained:
        firsts = [(side.label, side.first_steps_s) for side in trained]
        first = ", ".join(f"{label} {seconds(time)}" for label, time in firsts if not isinstance(time, Absent))
        yield f"Times are of a mean epoch, without first steps (tracing, compiling, allocating): {first} in all."
    for side in trained:
        yield from (f"{flag.name}: {flag.evidence} ({side.label})." for flag in side.flags)
    for what, name in NAMES.items():
        values = [(getattr(side, what), side.label) for side in trained]
        absent = grouped((value.reason, label) for value, label in values if isinstance(value, Absent))
        yield from (f"{name} unknown on {', '.join(labels)}: {reason}." for reason, labels in absent.items())
    costs = [side.energy for side in trained if not isinstance(side.energy, Absent)]
    if sources := dict.fromkeys(f"{cost.part}: {cost.source}" for cost in costs):
        yield f"Power and energy of {'; '.join(sources)}."
    said_of = grouped(
        (note, side.label)
        for run, side in zip(runs, sides, strict=True)
        for note in (run.setting.notes if run.setting is not None else ())
    )
    yield from (f"{', '.join(dict.fromkeys(labels))}: {note}" for note, labels in said_of.items())


def data_note(setting: TrainingSetup) -> str:
    train, others = setting.train_samples, setting.validation_samples
    trained = "a stream of unknown length" if train is None else f"{train:,} samples"
    validated = "another" if others is None else "nothing" if not others else f"{others:,} others"
    return f"Data: {setting.data}; {trained} to train, {validated} to validate."


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
    sides = [side for side in sides if curve(side)]
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


def _caption(runs: Sequence[TrainingRun]) -> str:
    plan = runs[0].plan
    differing = unlike(runs)
    parts = [plan.workload if "workload" not in differing else "trainings"]
    if "batch_size" in plan.params and "batch_size" not in differing:
        parts.append(f"batch {plan.params['batch_size']}")
    for name, value in plan.settings.changed().items():
        if all(run.plan.settings.changed().get(name) == value for run in runs):
            parts.append(f"{name} {value}")
    return ", ".join([*parts, *([f"seed {plan.seed}"] if len({run.plan.seed for run in runs}) == 1 else [])])


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    groups: list[list[int]] = []
    for number, width in enumerate(widths):
        if not groups or sum(widths[other] + BETWEEN for other in groups[-1]) + width + BETWEEN > room:
            groups.append([])
        groups[-1].append(number)
    return groups


def _epochs(side: TrainingFigures) -> str:
    if not side.epochs:
        return side.state
    return f"{side.epochs} of {side.of_epochs}" + ("" if side.state in WHOLE else f", {side.state}")


def _cost(side: TrainingFigures, value: str, unit: str) -> str:
    """Power or energy; a modelled one is marked."""
    return known(
        side.energy, lambda cost: f"{figures(getattr(cost, value))} {unit}{' (est.)' if cost.modelled else ''}"
    )


SIDE_FIGURES: dict[str, Callable[[TrainingFigures], str]] = {
    "epochs": _epochs,
    "best accuracy": lambda side: known(side.accuracy, lambda best: f"{percent(best)} (epoch {side.best_epoch})"),
    "best": lambda side: (
        "-"
        if side.monitor.name == ACCURACY or not side.epochs
        else (f"{side.monitor.name} {metric_value(side.monitor.name, side.best_value)} (epoch {side.best_epoch})")
    ),
    "epoch": lambda side: known(side.epoch_s, seconds),
    "  input": lambda side: known(side.input_s, seconds),
    "  compute": lambda side: known(side.compute_s, seconds),
    "  validation": lambda side: known(side.validation_s, seconds),
    "samples/s": lambda side: known(side.samples_s, figures),
    "utilisation": lambda side: known(side.utilisation, lambda used: f"{used.percent:.0f}% of {used.of}"),
    "power": lambda side: _cost(side, "average_w", "W"),
    "energy": lambda side: _cost(side, "joules", "J"),
    "memory": lambda side: known(side.memory_bytes, size),
    "parity": lambda side: "-" if side.parity is None else side.parity.value,
    "flags": lambda side: ", ".join(flag.name for flag in side.flags) or "-",
}
OPTIONAL = {"best accuracy", "best", "utilisation", "power", "energy", "memory", "parity", "flags"}
NAMES = {"utilisation": "Utilisation", "energy": "Power and energy", "memory_bytes": "Memory"}
