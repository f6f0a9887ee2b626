"""Tables of runs of every kind: the same for a terminal, a notebook and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.training import Ending, Epoch, TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.report.text.run_list import HEADERS, list_line
from metalmark.report.text.tables import Table, sweep_table
from metalmark.report.text.units import count, duration, figures, known, percent, seconds, share
from metalmark.report.training_sides import data_note, side_tables
from metalmark.results.cells import cells_of
from metalmark.results.derived import joules_of_epochs, target_reached
from metalmark.store.row import Row
from metalmark.training.derived import best, elapsed_s, samples_s

WIDE = 200
EPOCH_HEADERS = (
    "epoch", "train loss", "val loss", "accuracy", "top-5", "rate", "input", "compute", "validation", "samples/s",
)  # fmt: skip
PASS_HEADERS = ("loop", "steps", "time", "step", "input wait", "until the first batch")
WIDE_TABLE = 104
NARROW = {"top-5", "rate", "validation"}
"""Left out on a terminal under WIDE_TABLE columns: cut figures are worse than fewer."""


def run_tables(runs: Sequence[AnyRun], *, plans: Sequence[Plan] = (), columns: int = WIDE) -> list[Table]:
    """One table of the bench runs, one of a training's epochs or of several trainings side by side, one per
    watched run."""
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    trainings = [run for run in runs if isinstance(run, TrainingRun)]
    watched = [run for run in runs if isinstance(run, WatchedRun)]
    tables = [sweep_table(cells, plans=plans)] if cells or plans else []
    if len(trainings) == 1:
        tables.append(training_table(trainings[0], columns=columns))
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
        notes=(),
    )


def training_table(run: TrainingRun, *, columns: int = WIDE_TABLE) -> Table:
    top = best(run.epochs)
    rows = (_row(epoch, best=epoch is top) for epoch in run.epochs)
    shown = [columns >= WIDE_TABLE or header not in NARROW for header in EPOCH_HEADERS]
    headers = tuple(compress(EPOCH_HEADERS, shown))
    return Table(
        headers=headers,
        numeric=(True,) * len(headers),
        rows=tuple(tuple(compress(row, shown)) for row in rows),
        caption=_caption(run),
        notes=tuple(_notes(run)),
    )


def watched_table(run: WatchedRun) -> Table:
    rows = [
        (one.loop, f"{one.steps:,}", seconds(one.elapsed_s), seconds(one.elapsed_s / one.steps) if one.steps else "-",
         share(one.waited_s / one.elapsed_s) if one.elapsed_s > 0 else "-", seconds(one.first_wait_s))
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
    return (
        f"loss {epoch.train_loss:.4f}, validation {epoch.validation_loss:.4f}, "
        f"accuracy {percent(epoch.accuracy)}, {seconds(elapsed_s(epoch))}"
    )


def _row(epoch: Epoch, *, best: bool) -> tuple[str, ...]:
    return (
        f"{'*' if best else ''}{epoch.number}", f"{epoch.train_loss:.4f}", f"{epoch.validation_loss:.4f}",
        percent(epoch.accuracy), percent(epoch.top5), f"{epoch.learning_rate:.3g}", seconds(epoch.input_s),
        seconds(epoch.compute_s), seconds(epoch.validation_s), known(samples_s(epoch), figures),
    )  # fmt: skip


def _caption(run: TrainingRun) -> str:
    plan = run.plan
    where = f"{plan.framework} {f'on {run.setting.device_name}' if run.setting is not None else plan.device}"
    changed = "".join(f", {name} {value}" for name, value in plan.settings.changed().items())
    return f"{plan.workload}, batch {plan.params.get('batch_size', '?')}, {where}{changed}, seed {plan.seed}"


def _notes(run: TrainingRun) -> list[str]:
    setting, top = run.setting, best(run.epochs)
    notes = [data_note(setting)] if setting is not None else []
    if top is not None:
        total_s = sum(elapsed_s(epoch) for epoch in run.epochs)
        notes.append(
            f"{run.ending.value.capitalize()}: {count(len(run.epochs), 'epoch')} in {duration(total_s)}. "
            f"* best: epoch {top.number}, {percent(top.accuracy)} of the validation samples."
        )
        first_s = sum(epoch.first_steps_s for epoch in run.epochs)
        notes.append(
            f"First steps (tracing, compiling, allocating) took {seconds(first_s)} of compute; samples/s is without."
        )
    notes += _target(run)
    used = {part: value for part, value in joules_of_epochs(run, run.epochs).items() if not isinstance(value, Absent)}
    if used:
        notes.append(f"Energy: {', '.join(f'{part} {figures(value)} J' for part, value in used.items())}.")
    return [*notes, *(setting.notes if setting is not None else ())]


def _target(run: TrainingRun) -> list[str]:
    wanted = run.goal.target_accuracy
    if wanted is None:
        return []
    found = target_reached(run, wanted)
    if found is None:
        why = "" if run.ending is Ending.EPOCHS else f" ({run.ending.value})"
        return [f"The target of {percent(wanted)} was not reached{why}."]
    known = [f"{part} {figures(value)} J" for part, value in found.joules.items() if not isinstance(value, Absent)]
    reasons = [f"{part}: {value.reason}" for part, value in found.joules.items() if isinstance(value, Absent)]
    energy = ", ".join(known) or f"joules unknown: {'; '.join(reasons) or 'nothing here measures energy or power'}"
    return [
        f"The target of {percent(wanted)} was reached in epoch {found.epoch}, after {seconds(found.seconds)}; {energy}."
    ]
