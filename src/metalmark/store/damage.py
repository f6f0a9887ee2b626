"""Damage: what can't be what a run left, though its schema allows it."""

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.training import TrainingRun
from metalmark.model.watch import WatchedRun
from metalmark.store.row import row_of

LARGEST = 2**53
"""What a program in any language reads as the same number."""


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
    if not isinstance(run, WatchedRun) and max(run.cell, run.repeat) >= LARGEST:
        return "its place in the sweep is not a number that a sweep has"
    if isinstance(run, BenchRun) and isinstance(run.outcome, Completed):
        blocks = run.outcome.measurement.blocks
        if not blocks or min(block.elapsed_s for block in blocks) <= 0:
            return "it has no block, or one that lasted no time"
    try:
        row = row_of(run)
        figures = (row.step_s, row.samples_s, row.steps, row.input_share, row.accuracy)
        beyond = any(figure is not None and not figure < LARGEST for figure in figures)
    except ArithmeticError:
        beyond = True
    return "its figures are beyond any number" if beyond else ""
