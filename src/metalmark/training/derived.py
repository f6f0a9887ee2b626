"""What a TrainingRecord says when asked: the best epoch, rates, time and joules to the target accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct

from metalmark.model.run import Absent, Flag
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun
from metalmark.runner.flags import flags_around
from metalmark.stats.window import Window
from metalmark.telemetry.energy import energy_of, parts_of


class Reached(Struct, frozen=True, kw_only=True):
    epoch: int
    seconds: float
    """Of training and validation, checkpoints left out, over all sessions."""
    joules: dict[str, float | Absent]
    """By part of the machine that telemetry has an energy or a power of."""


def best(epochs: Sequence[Epoch]) -> Epoch | None:
    """The highest validation accuracy; between equals the lower validation loss, then the earlier."""
    return max(epochs, key=lambda epoch: (epoch.accuracy, -epoch.validation_loss, -epoch.number), default=None)


def ending(epochs: Sequence[Epoch], goal: Goal) -> Ending | None:
    """Why training is over after these epochs; None while it is not. A function of the curve, so that a resumed
    training stops where the other would have."""
    if not epochs:
        return None
    if goal.target_accuracy is not None and epochs[-1].accuracy >= goal.target_accuracy:
        return Ending.TARGET
    top = best(epochs)
    if goal.patience is not None and top is not None and epochs[-1].number - top.number >= goal.patience:
        return Ending.PATIENCE
    return Ending.EPOCHS if len(epochs) >= goal.epochs else None


def samples_s(epoch: Epoch) -> float | Absent:
    """Training samples a second, waiting for input included, the first step of each batch size left out."""
    return overall_samples_s([epoch])


def overall_samples_s(epochs: Sequence[Epoch]) -> float | Absent:
    """The same over all of them."""
    rest_s = sum(epoch.input_s + epoch.compute_s - epoch.first_steps_s for epoch in epochs)
    samples = sum(epoch.samples - epoch.first_steps_samples for epoch in epochs)
    if samples <= 0 or rest_s <= 0:
        return Absent("every step was the first of its batch size" if epochs else "no epoch was trained")
    return samples / rest_s


def elapsed_s(epoch: Epoch) -> float:
    return epoch.input_s + epoch.compute_s + epoch.validation_s


def reached(record: TrainingRun, accuracy: float) -> Reached | None:
    """The first epoch of that validation accuracy, and what it took to get there; None where none has it."""
    epochs: list[Epoch] = []
    for epoch in record.epochs:
        epochs.append(epoch)
        if epoch.accuracy >= accuracy:
            seconds = sum(elapsed_s(each) for each in epochs)
            return Reached(epoch=epoch.number, seconds=seconds, joules=joules(record, epochs))
    return None


def joules(record: TrainingRun, epochs: Sequence[Epoch]) -> dict[str, float | Absent]:
    """What these epochs used, by part; absent where one session's readings do not cover its share."""
    spans = [
        (record.sessions[number].telemetry.series, list(group))
        for number, group in groupby(epochs, key=lambda epoch: epoch.session)
        if number < len(record.sessions)
    ]
    parts = dict.fromkeys(part for series, _ in spans for part in parts_of(series))
    totals: dict[str, float | Absent] = {}
    for part in parts:
        used = [energy_of(part, series, group[0].begin_s, group[-1].end_s) for series, group in spans]
        missing = next((one for one in used if isinstance(one, Absent)), None)
        totals[part] = missing or sum(one.joules for one in used if not isinstance(one, Absent))
    return totals


def flags(record: TrainingRun) -> tuple[Flag, ...]:
    """What the machine did that could spoil the figures: each flag once, of the first session that shows it."""
    found: dict[str, Flag] = {}
    placed_on = record.setting.placed_on if record.setting is not None else str(record.plan.device)
    for number, session in enumerate(record.sessions):
        epochs = [epoch for epoch in record.epochs if epoch.session == number]
        if not epochs:
            continue
        begin_s, end_s = epochs[0].begin_s, epochs[-1].end_s
        window = Window.between(begin_s, end_s, placed_on, session.telemetry, session.software.environment)
        for flag in flags_around(window, session.machine):
            found.setdefault(flag.name, flag)
    return tuple(found.values())
