"""A TrainingRecord as a Table: a row an epoch, and in the notes what it came to."""

from __future__ import annotations

from itertools import compress

from metalmark.model.run import Absent
from metalmark.model.training import Ending, Epoch, TrainingRun
from metalmark.report.table import Table
from metalmark.report.units import duration, figures, seconds
from metalmark.training.derived import best, elapsed_s, joules, reached, samples_s

HEADERS = (
    "epoch", "train loss", "val loss", "accuracy", "top-5", "rate", "input", "compute", "validation", "samples/s",
)  # fmt: skip


WIDE = 104
NARROW = {"top-5", "rate", "validation"}
"""Left out on a terminal under WIDE columns: cut figures are worse than fewer."""


def training_table(record: TrainingRun, *, columns: int = WIDE) -> Table:
    top = best(record.epochs)
    rows = (_row(epoch, best=epoch is top) for epoch in record.epochs)
    shown = [columns >= WIDE or header not in NARROW for header in HEADERS]
    headers = tuple(compress(HEADERS, shown))
    return Table(
        headers=headers,
        numeric=(True,) * len(headers),
        rows=tuple(tuple(compress(row, shown)) for row in rows),
        caption=_caption(record),
        notes=tuple(_notes(record)),
    )


def percent(value: float | Absent) -> str:
    return "-" if isinstance(value, Absent) else f"{value * 100:.2f}%"


def summary(epoch: Epoch) -> str:
    """One line for a log."""
    return (
        f"loss {epoch.train_loss:.4f}, validation {epoch.validation_loss:.4f}, "
        f"accuracy {percent(epoch.accuracy)}, {seconds(elapsed_s(epoch))}"
    )


def _row(epoch: Epoch, *, best: bool) -> tuple[str, ...]:
    pace = samples_s(epoch)
    return (
        f"{'*' if best else ''}{epoch.number}",
        f"{epoch.train_loss:.4f}",
        f"{epoch.validation_loss:.4f}",
        percent(epoch.accuracy),
        percent(epoch.top5),
        f"{epoch.learning_rate:.3g}",
        seconds(epoch.input_s),
        seconds(epoch.compute_s),
        seconds(epoch.validation_s),
        "-" if isinstance(pace, Absent) else figures(pace),
    )


def _caption(record: TrainingRun) -> str:
    plan = record.plan
    where = f"{plan.framework} {plan.device}"
    if record.setting is not None:
        where = f"{plan.framework} on {record.setting.device_name}"
    changed = "".join(f", {name} {value}" for name, value in plan.settings.changed().items())
    return f"{plan.workload}, batch {plan.params.get('batch_size', '?')}, {where}{changed}, seed {plan.seed}"


def _notes(record: TrainingRun) -> list[str]:
    notes = []
    setting, top = record.setting, best(record.epochs)
    if setting is not None:
        notes.append(
            f"Data: {setting.data}; {setting.train_samples:,} samples to train, "
            f"{setting.validation_samples:,} others to validate."
        )
    if top is not None:
        total_s = sum(elapsed_s(epoch) for epoch in record.epochs)
        count = "1 epoch" if len(record.epochs) == 1 else f"{len(record.epochs)} epochs"
        notes.append(
            f"{record.ending.value.capitalize()}: {count} in {duration(total_s)}. "
            f"* best: epoch {top.number}, {percent(top.accuracy)} of the validation samples."
        )
        first_s = sum(epoch.first_steps_s for epoch in record.epochs)
        notes.append(
            f"First steps (tracing, compiling, allocating) took {seconds(first_s)} of compute; samples/s is without."
        )
    notes += _target(record)
    used = {part: value for part, value in joules(record, record.epochs).items() if not isinstance(value, Absent)}
    if used:
        notes.append(f"Energy: {', '.join(f'{part} {figures(value)} J' for part, value in used.items())}.")
    return [*notes, *(setting.notes if setting is not None else ())]


def _target(record: TrainingRun) -> list[str]:
    wanted = record.goal.target_accuracy
    if wanted is None:
        return []
    found = reached(record, wanted)
    if found is None:
        why = "" if record.ending is Ending.EPOCHS else f" ({record.ending.value})"
        return [f"The target of {percent(wanted)} was not reached{why}."]
    known = [f"{part} {figures(value)} J" for part, value in found.joules.items() if not isinstance(value, Absent)]
    reasons = [f"{part}: {value.reason}" for part, value in found.joules.items() if isinstance(value, Absent)]
    energy = ", ".join(known) or f"joules unknown: {'; '.join(reasons) or 'nothing here measures energy or power'}"
    return [
        f"The target of {percent(wanted)} was reached in epoch {found.epoch}, after {seconds(found.seconds)}; {energy}."
    ]
