"""Tables of runs of every kind: the same for a terminal, a notebook and Markdown."""

from collections.abc import Sequence
from itertools import compress

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun, ParityVerdict
from metalmark.model.plan import CellTarget, Plan
from metalmark.model.run import PARITY_FAILED, Absent
from metalmark.model.training import ACCURACY, Ending, Epoch, TrainingRun
from metalmark.model.tuning import TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.model.workload import Task
from metalmark.report.text.explain_page import explanation_tables
from metalmark.report.text.parity_page import parity_tables
from metalmark.report.text.run_list import HEADERS, list_line
from metalmark.report.text.side_by_side import data_note, side_tables
from metalmark.report.text.tables import Table, sweep_table
from metalmark.report.text.tune_page import tuning_tables
from metalmark.report.text.units import (
    count,
    duration,
    figures,
    known,
    metric_value,
    percent,
    seconds,
    target_shown,
)
from metalmark.report.text.watch_page import watched_tables
from metalmark.results.cells import cells_of
from metalmark.results.derived import joules_of_epochs, target_reached
from metalmark.store.row import Row
from metalmark.training.derived import best, elapsed_s, figure, monitor_of, samples_s

WIDE = 200
EPOCH_HEADERS = (
    "epoch", "train loss", "val loss", "accuracy", "top-5", "rate", "input", "compute", "validation", "samples/s",
)  # fmt: skip
UNKNOWN = {"val loss", "accuracy", "top-5"}
"""Left out where no epoch has one."""
POSITIONS = {Task.LANGUAGE.value: "tokens", Task.SEGMENTATION.value: "pixels", Task.MULTILABEL.value: "labels"}
DROP = ("top-5", "rate", "validation")
"""What a narrow window does without before the user's own metrics."""


def run_tables(
    runs: Sequence[AnyRun], *, plans: Sequence[Plan] = (), targets: Sequence[CellTarget] = (), columns: int = WIDE
) -> list[Table]:
    """One table of the bench runs, one of a training's epochs or of several trainings side by side, one per
    watched run, and those of parity checks, explanations and tunings."""
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    trainings = [run for run in runs if isinstance(run, TrainingRun)]
    watched = [run for run in runs if isinstance(run, WatchedRun)]
    checks = [run for run in runs if isinstance(run, ParityRun)]
    explanations = [run for run in runs if isinstance(run, ExplanationRun)]
    tunings = [run for run in runs if isinstance(run, TuningRun)]
    tuned = {run.sweep for run in tunings}
    asked = [cell for cell in cells if cell.records[0].sweep not in tuned]
    # The plans of parity checks, explanations and tunings are no cells to be measured.
    planned = plans if asked or not (checks or explanations or tunings) else ()
    tables = [sweep_table(cells, plans=planned, targets=targets if planned else ())] if cells or planned else []
    if len(trainings) == 1:
        tables.append(training_table(trainings[0]))
    elif trainings:
        tables += side_tables(trainings, columns=columns)
    for run in watched:
        tables += watched_tables(run)
    # The bench runs beside a tuning are its trials, those beside an explanation verify it.
    return [
        *tuning_tables(tunings),
        *explanation_tables(explanations, columns=columns),
        *tables,
        *parity_tables(checks, columns=columns),
    ]


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
    changed += f", {plan.world.label}" if plan.world else ""
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


def parity_note(run: BenchRun | TrainingRun) -> list[str]:
    """What the parity check of its plan found, in a sentence; nothing where it has none."""
    mark = run.parity
    if mark is None:
        return []
    word = f"{PARITY_FAILED}: " if mark.verdict is ParityVerdict.DIFFERS else "Parity: "
    return [f"{word}{mark.sentence.rstrip('.')} (check {mark.run})."]


def _training_notes(run: TrainingRun) -> list[str]:
    setting, top = run.setting, best(run.epochs, run.goal.monitor)
    notes = parity_note(run)
    notes += [data_note(setting)] if setting is not None else []
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
