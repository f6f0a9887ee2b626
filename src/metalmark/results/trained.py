"""Trainings against each other: accuracy, or what chose the best epochs, and time to a target."""

from msgspec import Struct

from metalmark.model.run import Absent
from metalmark.model.training import ACCURACY, Ending, Metric
from metalmark.results.derived import target_reached
from metalmark.results.measured import Measured, samples_by_seed
from metalmark.results.pairing import Pair
from metalmark.stats.difference import Difference, Gap, difference, gap
from metalmark.training.derived import best, figure, monitor_of

METRIC_BAND = 0.01
"""The smallest noise band of a figure that is no share, as a share of its value."""


class TrainedFigures(Struct, frozen=True, kw_only=True):
    """What the trainings of one side came to. Trainings of one seed count once: where a device computes the same
    twice, the second says nothing new."""

    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """Validation accuracy of the best epoch, the mean of each seed's trainings."""
    final_accuracies: tuple[float, ...]
    """Validation accuracy of the last epoch, likewise."""
    metric: Metric | None = None
    """What their best epochs were chosen by, where that is one and the same, and not the accuracy."""
    values: tuple[float, ...] = ()
    """That figure of the best epoch, the mean of each seed's trainings."""
    target_s: tuple[float, ...]
    """Seconds to the end of the epoch that reached the target accuracy, of each training that did."""
    missed: int
    """How many trainings never reached it."""


class TrainedDifference(Struct, frozen=True, kw_only=True):
    accuracy: Gap | Absent
    """Of the best epoch."""
    final_accuracy: Gap | Absent
    """Of the last epoch."""
    paired: bool = False
    """Whether accuracies were compared seed by seed: each seed had samples of its own, the same on both sides."""
    to_target: Difference | Absent
    """Time to the target accuracy."""
    monitored: Gap | None = None
    """Of what the best epochs were chosen by, in its own unit; None where that is the accuracy, or not the same."""

    @property
    def judged(self) -> Gap | Absent:
        """What says which side is better: the accuracy, where there is none what the best epochs were chosen by."""
        return self.monitored if isinstance(self.accuracy, Absent) and self.monitored is not None else self.accuracy


def trained_figures(cell: Measured, target: float | None) -> TrainedFigures:
    tops: dict[int, list[float]] = {}
    finals: dict[int, list[float]] = {}
    for run in cell.trainings:
        top = best(run.epochs, run.goal.monitor)
        if top is not None and not isinstance(top.accuracy, Absent):
            tops.setdefault(run.plan.seed, []).append(top.accuracy)
            last = run.epochs[-1].accuracy
            finals.setdefault(run.plan.seed, []).append(top.accuracy if isinstance(last, Absent) else last)
    metric, values = _monitored(cell)
    reached = [] if target is None else [target_reached(run, target) for run in cell.trainings]
    times = [one.seconds for one in reached if one is not None]
    return TrainedFigures(
        seeds=tuple(sorted(tops or values)),
        metric=metric,
        values=tuple(sum(values[seed]) / len(values[seed]) for seed in sorted(values)),
        accuracies=tuple(sum(tops[seed]) / len(tops[seed]) for seed in sorted(tops)),
        final_accuracies=tuple(sum(finals[seed]) / len(finals[seed]) for seed in sorted(finals)),
        target_s=tuple(times),
        missed=len(reached) - len(times),
    )


def _monitored(cell: Measured) -> tuple[Metric | None, dict[int, list[float]]]:
    """Return what the best epochs of all trainings were chosen by, and its values by seed; None of the accuracy."""
    trained = [run for run in cell.trainings if run.epochs]
    metrics = {monitor_of(run.epochs, run.goal.monitor) for run in trained}
    metric = metrics.pop() if len(metrics) == 1 else None
    if metric is None or metric.name == ACCURACY:
        return None, {}
    values: dict[int, list[float]] = {}
    for run in trained:
        top = best(run.epochs, metric)
        value = figure(top, metric.name) if top is not None else Absent("")
        if not isinstance(value, Absent):
            values.setdefault(run.plan.seed, []).append(value)
    return metric, values


def _monitored_gap(a: TrainedFigures, b: TrainedFigures, *, paired: bool) -> Gap | None:
    if a.metric is None or a.metric != b.metric or not a.values or not b.values:
        return None
    least = METRIC_BAND * sum(map(abs, a.values)) / len(a.values)
    return gap(
        a.values, b.values, band=least, less_is_better=a.metric.falls, paired=paired, sample="seed",
        words=lambda size: f"{size:.3g}",
    )  # fmt: skip


def trained_difference(
    one: Pair, a: TrainedFigures | None, b: TrainedFigures | None, band: float, target: float | None
) -> TrainedDifference | None:
    if a is None or b is None:
        return None
    failed = next((cell for cell in one if cell.failure), None)
    if failed is not None:
        lost = Absent(reason=f"{failed.name} did not complete: {failed.failure}")
        return TrainedDifference(accuracy=lost, final_accuracy=lost, to_target=lost)
    if any(run.ending is Ending.TARGET for cell in one for run in cell.trainings):
        why = Absent(reason="they stopped when they reached their target, so how far they would have come is not known")
        return TrainedDifference(accuracy=why, final_accuracy=why, to_target=_to_target(one, a, b, band, target))
    # Where each seed has samples of its own, how these differ is in both sides alike.
    paired = a.seeds == b.seeds and len({*map(frozenset, samples_by_seed(one.a.trainings).values())}) > 1
    monitored = _monitored_gap(a, b, paired=paired)
    if not a.accuracies or not b.accuracies:
        why = Absent(reason="they have no accuracy")
        to_target = _to_target(one, a, b, band, target)
        return TrainedDifference(
            accuracy=why, final_accuracy=why, paired=paired, to_target=to_target, monitored=monitored
        )
    return TrainedDifference(
        monitored=monitored,
        accuracy=gap(a.accuracies, b.accuracies, paired=paired, sample="seed"),
        final_accuracy=gap(a.final_accuracies, b.final_accuracies, paired=paired, sample="seed"),
        paired=paired,
        to_target=_to_target(one, a, b, band, target),
    )


def _to_target(
    one: Pair, a: TrainedFigures, b: TrainedFigures, band: float, target: float | None
) -> Difference | Absent:
    if target is None:
        return Absent(reason="no target accuracy was given, and the trainings have none in common")
    # A mean over those that got there would make the side look good that rarely does.
    missed = [
        f"{figures.missed} of {figures.missed + len(figures.target_s)} trainings of {cell.name} never reached it"
        for cell, figures in zip(one, (a, b), strict=True)
        if figures.missed
    ]
    if missed:
        return Absent(reason="; ".join(missed))
    return difference(
        [[seconds] for seconds in a.target_s], [[seconds] for seconds in b.target_s], band=band, sample="run"
    )
