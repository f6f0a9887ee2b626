"""Damage: what can't be what a run left, though its schema allows it."""

from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun, Roofline
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.store.row import row_of

LARGEST = 2**53
"""What a program in any language reads as the same number."""
ROUNDED = 0.01
"""How far the shares of a step may be from adding up to it."""


def damage_of(run: AnyRun) -> str:
    """Why it can't be what a run left, though the schema allows it; empty for one that can."""
    readings = [one.telemetry for one in run.sessions] if isinstance(run, TrainingRun) else [run.telemetry]
    if any(len(series.at_s) != len(series.values) for telemetry in readings for series in telemetry.series):
        return "a series has more values than times, or fewer"
    if isinstance(run, WatchedRun) and any(
        not len(curve.steps) == len(curve.at_s) == len(curve.values) for curve in run.curves
    ):
        return "a curve has more values than steps, or fewer"
    if isinstance(run, TrainingRun) and any(epoch.session >= len(run.sessions) for epoch in run.epochs):
        return "an epoch belongs to a session that is not there"
    if max(getattr(run, "cell", 0), getattr(run, "repeat", 0)) >= LARGEST:
        return "its place in the sweep is not a number that a sweep has"
    if isinstance(run, BenchRun) and isinstance(run.outcome, Completed):
        blocks = run.outcome.measurement.blocks
        if not blocks or min(block.elapsed_s for block in blocks) <= 0:
            return "it has no block, or one that lasted no time"
    if (
        isinstance(run, ParityRun)
        and isinstance(run.outcome, Checked)
        and any(
            not 0 < row.sigma < float("inf") or (row.distance is not None and not 0 <= row.distance < float("inf"))
            for row in run.outcome.compared
        )
    ):
        return "a quantity has no noise to be judged by, or a distance below 0"
    if isinstance(run, ExplanationRun) and isinstance(run.outcome, Explained) and (why := _unlike_a_step(run.outcome)):
        return why
    if isinstance(run, TuningRun) and isinstance(run.outcome, Tuned) and (why := _unlike_a_ladder(run, run.outcome)):
        return why
    try:
        row = row_of(run)
        figures = (row.step_s, row.samples_s, row.steps, row.input_share, row.accuracy)
        beyond = any(figure is not None and not figure < LARGEST for figure in figures)
    except ArithmeticError:
        beyond = True
    return "its figures are beyond any number" if beyond else ""


def _unlike_a_ladder(run: TuningRun, found: Tuned) -> str:
    if not found.ladder:
        return "its ladder has no baseline"
    for rung in (*found.ladder, *found.others):
        figures = (rung.value, rung.step_s, rung.gain, rung.low, rung.high, rung.first_step_s, rung.joules_per_sample)
        counts = (rung.samples_per_step, rung.peak_bytes)
        if any(value is not None and not 0 <= value < LARGEST for value in (*figures, *counts)) or rung.gain == 0:
            return "a rung has a figure that nothing measured has"
        try:
            rung.change.applied(run.plan)
        except (TypeError, ValueError):  # msgspec's own are ValueErrors too
            return "a rung changes a setting that there is not"
    return ""


def _unlike_a_step(found: Explained) -> str:
    shares_s = sum(one.seconds for one in found.shares)
    # A script that took no step is explained by a sentence alone.
    if not found.step_s < LARGEST or abs(shares_s - found.step_s) > ROUNDED * found.step_s:
        return "the shares of its step do not add up"
    line = found.roofline
    if isinstance(line, Roofline) and not all(
        0 < value < float("inf")
        for value in (line.flops, line.bytes, line.step_s, line.peak_flops_per_s, line.peak_bytes_per_s)
    ):
        return "its roofline has no work, or a ceiling of nothing"
    return ""
