"""Figures derived from a training's epochs: the best one, rates, why it is over, and flags."""

import math
import re
from collections.abc import Sequence

from metalmark.model.run import Absent, Flag
from metalmark.model.training import (
    ACCURACY,
    TOP5,
    TRAIN_LOSS,
    VALIDATION_LOSS,
    Ending,
    Epoch,
    Goal,
    Metric,
    Target,
    TrainingRun,
)
from metalmark.runner.flags import flags_around
from metalmark.stats.window import Window

USUAL = (
    Metric(name=ACCURACY, falls=False),
    Metric(name=VALIDATION_LOSS, falls=True),
    Metric(name=TRAIN_LOSS, falls=True),
)
FALLING = {
    "bpb", "bpc", "brier", "cer", "distance", "divergence", "err", "fid", "kl", "mae", "mape", "mse", "nll", "ppl",
    "rmse", "wer",
}  # fmt: skip
"""Words in the names of figures that are better when they are lower."""


def figure(epoch: Epoch, name: str) -> float | Absent:
    """Return a figure of an epoch by the name that --target and --monitor have for it."""
    fields = {ACCURACY: epoch.accuracy, TOP5: epoch.top5, VALIDATION_LOSS: epoch.validation_loss,
              TRAIN_LOSS: epoch.train_loss}  # fmt: skip
    if name in fields:
        return fields[name]
    return epoch.metrics.get(name, Absent(f"epoch {epoch.number} has no {name}"))


def curve(epochs: Sequence[Epoch], name: str) -> tuple[float, ...]:
    """Return a figure of all epochs; empty where one of them does not have it."""
    values = [figure(epoch, name) for epoch in epochs]
    known = tuple(value for value in values if not isinstance(value, Absent))
    return known if len(known) == len(values) else ()


def monitor_of(epochs: Sequence[Epoch], monitor: Metric | None = None) -> Metric:
    """Return what makes one epoch better than another: what was asked for, else the first of these that there is."""
    if monitor is not None:
        return monitor
    for usual in USUAL:
        if any(not isinstance(figure(epoch, usual.name), Absent) for epoch in epochs):
            return usual
    return USUAL[0]


def best(epochs: Sequence[Epoch], monitor: Metric | None = None) -> Epoch | None:
    """Return the best epoch by `monitor`, a goal's; of equals the lower validation loss, then the earlier."""
    by = monitor_of(epochs, monitor)

    def rank(epoch: Epoch) -> tuple[float, float, int]:
        value, loss = figure(epoch, by.name), epoch.validation_loss
        worth = -math.inf if isinstance(value, Absent) else -value if by.falls else value
        return worth, 0.0 if isinstance(loss, Absent) else -loss, -epoch.number

    return max(epochs, key=rank, default=None)


def reaches(epoch: Epoch, target: Target) -> bool:
    value = figure(epoch, target.name)
    if isinstance(value, Absent):
        return False
    return value <= target.value if target.falls else value >= target.value


def ending(epochs: Sequence[Epoch], goal: Goal) -> Ending | None:
    """Return why training is over after these epochs, or None. It depends on the curve alone, so that a resumed
    training stops where an uninterrupted one would have."""
    if not epochs:
        return None
    if goal.wanted is not None and reaches(epochs[-1], goal.wanted):
        return Ending.TARGET
    top = best(epochs, goal.monitor)
    if goal.patience is not None and top is not None and epochs[-1].number - top.number >= goal.patience:
        return Ending.PATIENCE
    return Ending.EPOCHS if len(epochs) >= goal.epochs else None


def falls_by_name(name: str) -> bool:
    """Return whether lower is better, as far as a name tells: of losses, errors and what is like them."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return any(word in FALLING or word.endswith(("loss", "error", "perplexity")) for word in words)


def spans(epochs: Sequence[Epoch], session: int) -> list[tuple[float, float]]:
    """Return when a session trained these epochs, or its part of them, on its own clock."""
    found = []
    for epoch in epochs:
        found += [(part.begin_s, part.end_s) for part in epoch.earlier if part.session == session]
        found += [(epoch.begin_s, epoch.end_s)] if epoch.session == session else []
    return found


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
        times = spans(record.epochs, number)
        if not times:
            continue
        span = times[0][0], times[-1][1]
        window = Window([span], placed_on, session.telemetry, session.software.environment)
        for flag in flags_around(window, session.machine):
            found.setdefault(flag.name, flag)
    return tuple(found.values())
