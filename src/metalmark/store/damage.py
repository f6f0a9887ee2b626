"""What the schema allows and the clock never gives: records that someone edited, found before they are stored."""

from __future__ import annotations

from metalmark.errors import FormatError
from metalmark.model.measurement import BenchRun, Completed

LARGEST = 2**53
"""What a program in any language reads as the same number."""


def damage_of(record: BenchRun) -> str:
    """Why it can't be a measurement; empty for one that can."""
    run = record.outcome
    if isinstance(run, Completed):
        blocks = run.measurement.blocks
        if not blocks or min(block.elapsed_s for block in blocks) <= 0:
            return "it has no block, or one that lasted no time"
    if any(len(series.at_s) != len(series.values) for series in record.telemetry.series):
        return "a series has more values than times, or fewer"
    batch = record.plan.params.get("batch_size")
    if batch is not None and not (type(batch) is int and 0 < batch < LARGEST):
        return "its batch size is no number of samples"
    if max(record.cell, record.repeat) >= LARGEST:
        return "its place in the sweep is no place"
    return ""


def refuse_damaged(record: BenchRun, source: str) -> None:
    why = damage_of(record)
    if why:
        raise FormatError(f"Record {record.id} of {source} is damaged: {why}.", hint="Export it again.")
