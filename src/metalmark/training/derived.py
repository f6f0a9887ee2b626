"""Figures derived from a training's epochs: the best one, rates, why it is over, and flags."""

from collections.abc import Sequence

from metalmark.model.run import Absent, Flag
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun
from metalmark.runner.flags import flags_around
from metalmark.stats.window import Window


def best(epochs: Sequence[Epoch]) -> Epoch | None:
    """Return the epoch of the highest validation accuracy; of equals the lower loss, then the earlier."""
    return max(epochs, key=lambda epoch: (epoch.accuracy, -epoch.validation_loss, -epoch.number), default=None)


def ending(epochs: Sequence[Epoch], goal: Goal) -> Ending | None:
    """Return why training is over after these epochs, or None. It depends on the curve alone, so that a resumed
    training stops where an uninterrupted one would have."""
    if not epochs:
        return None
    if goal.target_accuracy is not None and epochs[-1].accuracy >= goal.target_accuracy:
        return Ending.TARGET
    top = best(epochs)
    if goal.patience is not None and top is not None and epochs[-1].number - top.number >= goal.patience:
        return Ending.PATIENCE
    return Ending.EPOCHS if len(epochs) >= goal.epochs else None


def samples_s(epoch: Epoch) -> float | Absent:
    """Return training samples per second: with waiting for input, without the first step of each batch size."""
    return overall_samples_s([epoch])


def overall_samples_s(epochs: Sequence[Epoch]) -> float | Absent:
    """Return the same over several epochs."""
    rest_s = sum(epoch.input_s + epoch.compute_s - epoch.first_steps_s for epoch in epochs)
    samples = sum(epoch.samples - epoch.first_steps_samples for epoch in epochs)
    if samples <= 0 or rest_s <= 0:
        return Absent("every step was the first of its batch size" if epochs else "no epoch was trained")
    return samples / rest_s


def elapsed_s(epoch: Epoch) -> float:
    return epoch.input_s + epoch.compute_s + epoch.validation_s


def flags(record: TrainingRun) -> tuple[Flag, ...]:
    """Return what the machine did that could spoil the figures: each flag once, of the first session that shows it."""
    found: dict[str, Flag] = {}
    placed_on = record.setting.placed_on if record.setting is not None else str(record.plan.device)
    for number, session in enumerate(record.sessions):
        epochs = [epoch for epoch in record.epochs if epoch.session == number]
        if not epochs:
            continue
        span = epochs[0].begin_s, epochs[-1].end_s
        window = Window([span], placed_on, session.telemetry, session.software.environment)
        for flag in flags_around(window, session.machine):
            found.setdefault(flag.name, flag)
    return tuple(found.values())
