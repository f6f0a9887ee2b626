"""Tables of runs of every kind: the same for a terminal, a notebook and Markdown.

Trainings side by side have a column each, and below the table their curves, each kind on one scale."""

from collections.abc import Callable, Iterator, Sequence
from itertools import compress

from msgspec.structs import replace

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan, word
from metalmark.model.run import Absent
from metalmark.model.training import ACCURACY, Ending, Epoch, TrainingRun, TrainingSetup
from metalmark.model.watch import WatchedRun
from metalmark.model.workload import Task
from metalmark.report.compare_page import comparison_answer, try_to_compare
from metalmark.report.text.run_list import HEADERS, list_line
from metalmark.report.text.tables import Table, sweep_table
from metalmark.report.text.units import (
    count,
    duration,
    figures,
    grouped,
    known,
    metric_value,
    percent,
    seconds,
    share,
    size,
    spark,
    target_shown,
)
from metalmark.results.cells import cells_of
from metalmark.results.derived import TrainingFigures, joules_of_epochs, target_reached, training_figures
from metalmark.results.measured import samples_by_seed, training_question
from metalmark.results.pairing import Side, shown
from metalmark.store.row import Row
from metalmark.training.derived import best, elapsed_s, figure, monitor_of, samples_s

WIDE = 200
EPOCH_HEADERS = (
    "epoch", "train loss", "val loss", "accuracy", "top-5", "rate", "input", "compute", "validation", "samples/s",
)  # fmt: skip
PASS_HEADERS = ("loop", "steps", "time", "step", "input wait", "until the first batch")
UNKNOWN = {"val loss", "accuracy", "top-5"}
"""Left out where no epoch has one."""
POSITIONS = {Task.LANGUAGE.value: "tokens", Task.SEGMENTATION.value: "pixels", Task.MULTILABEL.value: "labels"}
DROP = ("top-5", "rate", "validation")
"""What a narrow window does without before the user's own metrics."""
BARS = 48
CURVE_ENDS = 24
"""Characters around the label and the bars of a curve: its first and its last value."""
BETWEEN = 3
WHOLE = {Ending.EPOCHS.value, Ending.TARGET.value, Ending.PATIENCE.value}


def run_tables(runs: Sequence[AnyRun], *, plans: Sequence[Plan] = (), columns: int = WIDE) -> list[Table]:
    """One table of the bench runs, one of a training's epochs or of several trainings side by side, one per
    watched run."""
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    trainings = [run for run in runs if isinstance(run, TrainingRun)]
    watched = [run for run in runs if isinstance(run, WatchedRun)]
    tables = [sweep_table(cells, plans=plans)] if cells or plans else []
    if len(trainings) == 1:
        tables.append(training_table(trainings[0]))
    elif trainings:
        tables += side_tables(trainings, columns=columns)
    return [*tables, *(watched_table(run) for run in watched)]


def list_table(rows: Sequence[Row]) -> Table:
    """The list of runs as a table."""
    return Table(
        headers=HEADERS,
        numeric=tuple(header == "batch" for header in HEADERS),
        rows=tuple(list_line(row) for row in rows),
        caption="Runs, the newest last",
    )


def training_table(run: TrainingRun) -> Table:
    plan, top = run.plan, best(run.epochs, run.goal.monitor)
    names = list(dict.fromkeys(name for epoch in run.epochs for name in epoch.metrics))
    rows = [
        (f"{'*' if epoch is top else ''}{epoch.number}", f"{epoch.train_loss:.4f}",
         known(epoch.validation_loss, "{:.4f}".format), percent(epoch.accuracy),
         *(metric_value(name, figure(epoch, name)) for name in names), percent(epoch.top5),
         f"{epoch.learning_rate:.3g}", seconds(epoch.input_s), seconds(epoch.compute_s), seconds(epoch.validation_s),
         known(samples_s(epoch), figures))
        for epoch in run.epochs
    ]  # fmt: skip
    every = (*EPOCH_HEADERS[:4], *names, *EPOCH_HEADERS[4:])
    where = f"{plan.framework} {f'on {run.setting.device_name}' if run.setting is not None else plan.device}"
    changed = "".join(f", {name} {value}" for name, value in plan.settings.changed().items())
    unknown = {every[at] for at in range(len(every)) if rows and all(row[at] == "-" for row in rows)} & UNKNOWN
    shown = [header not in unknown for header in every]
    headers = tuple(compress(every, shown))
    return Table(
        headers=headers,
        numeric=(True,) * len(headers),
        rows=tuple(tuple(compress(row, shown)) for row in rows),
        caption=f"{plan.workload}, batch {plan.params.get('batch_size', '?')}, {where}{changed}, seed {plan.seed}",
        notes=tuple(_training_notes(run)),
        drop=(*DROP, *reversed(names), "input", "compute"),
    )


def watched_table(run: WatchedRun) -> Table:
    rows = [
        (one.loop, f"{one.steps:,}", seconds(one.elapsed_s), seconds(one.elapsed_s / one.steps) if one.steps else "-",
         share(one.waited_s / one.elapsed_s) if one.waited_s is not None and one.elapsed_s > 0 else "-",
         seconds(one.first_wait_s) if one.first_wait_s is not None else "-")
        for one in run.passes
    ]  # fmt: skip
    logged = [
        f"{curve.name}: {count(len(curve.values), 'value')} logged, the last finite one {values[-1]:g}."
        for curve in run.curves
        if (values := [value for value in curve.values if value is not None])
    ]
    ended = f"{run.ended.value.capitalize()} after {duration(run.elapsed_s)}; its times are the host's."
    return Table(
        headers=PASS_HEADERS,
        numeric=(False, True, True, True, True, True),
        rows=tuple(rows),
        caption=run.name,
        notes=(ended, *([run.error] if run.error else []), *logged, *run.notes),
    )


def summary(epoch: Epoch) -> str:
    """Return an epoch as one line of a log."""
    named = [(name, metric_value(name, value)) for name, value in epoch.metrics.items()]
    parts = [
        ("validation", known(epoch.validation_loss, "{:.4f}".format)),
        ("accuracy", percent(epoch.accuracy)),
        *named,
    ]
    figures = [f"{name} {value}" for name, value in parts if value != "-"]
    return ", ".join([f"loss {epoch.train_loss:.4f}", *figures, seconds(elapsed_s(epoch))])


def _training_notes(run: TrainingRun) -> list[str]:
    setting, top = run.setting, best(run.epochs, run.goal.monitor)
    notes = [data_note(setting)] if setting is not None else []
    if setting is not None and setting.task not in ("", Task.CLASSIFICATION):
        notes.append(f"Task: {setting.task}.")
    if top is not None:
        total_s = sum(elapsed_s(epoch) for epoch in run.epochs)
        notes.append(
            f"{run.ending.value.capitalize()}: {count(len(run.epochs), 'epoch')} in {duration(total_s)}. "
            f"* best: epoch {top.number}, {best_words(run, top)}."
        )
        if isinstance(top.validation_loss, Absent):
            notes.append(f"Not validated: {top.validation_loss.reason}.")
        elif isinstance(top.accuracy, Absent) and (setting is None or setting.task != Task.REGRESSION):
            notes.append(f"No accuracy: {top.accuracy.reason}.")
        first_s = sum(epoch.first_steps_s for epoch in run.epochs)
        notes.append(
            f"First steps (tracing, compiling, allocating) took {seconds(first_s)} of compute; samples/s is without."
        )
    notes += _target(run)
    used = {part: value for part, value in joules_of_epochs(run, run.epochs).items() if not isinstance(value, Absent)}
    if used:
        notes.append(f"Energy: {', '.join(f'{part} {figures(value)} J' for part, value in used.items())}.")
    return [*notes, *(setting.notes if setting is not None else ())]


def best_words(run: TrainingRun, top: Epoch) -> str:
    """What made an epoch the best."""
    by = monitor_of(run.epochs, run.goal.monitor)
    value = metric_value(by.name, figure(top, by.name))
    if by.name == ACCURACY and not by.falls:
        return (
            f"{value} of the validation {POSITIONS.get(run.setting.task if run.setting is not None else '', 'samples')}"
        )
    return f"the {'lowest' if by.falls else 'highest'} {by.name}, {value}"


def _target(run: TrainingRun) -> list[str]:
    wanted = run.goal.wanted
    if wanted is None:
        return []
    found = target_reached(run, wanted)
    if found is None:
        why = "" if run.ending is Ending.EPOCHS else f" ({run.ending.value})"
        return [f"The target of {target_shown(wanted)} was not reached{why}."]
    known = [f"{part} {figures(value)} J" for part, value in found.joules.items() if not isinstance(value, Absent)]
    reasons = [f"{part}: {value.reason}" for part, value in found.joules.items() if isinstance(value, Absent)]
    energy = ", ".join(known) or f"joules unknown: {'; '.join(reasons) or 'nothing here measures energy or power'}"
    return [
        f"The target of {target_shown(wanted)} was reached in epoch {found.epoch}, after {seconds(found.seconds)}; "
        f"{energy}."
    ]


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
    "flags": lambda side: ", ".join(flag.name for flag in side.flags) or "-",
}
OPTIONAL = {"best accuracy", "best", "utilisation", "power", "energy", "memory", "flags"}
NAMES = {"utilisation": "Utilisation", "energy": "Power and energy", "memory_bytes": "Memory"}
