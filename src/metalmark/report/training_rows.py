"""Trainings in `runs list`: from the store's index alone, without opening a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metalmark.report.columns import columns
from metalmark.report.units import figures, moment
from metalmark.scrub import printable

if TYPE_CHECKING:
    from metalmark.store.trainings import TrainingRow

HEADERS = (
    "training", "name", "when (UTC)", "workload", "batch", "dtype", "framework", "device", "epochs", "accuracy",
    "samples/s", "ended",
)  # fmt: skip
NUMERIC = {"batch", "epochs", "accuracy", "samples/s"}


def training_rows_text(rows: Sequence[TrainingRow]) -> str:
    return columns(HEADERS, [_line(row) for row in rows], NUMERIC)


def training_entries(rows: Sequence[TrainingRow]) -> list[dict[str, Any]]:
    """For programs: the keys of a record's entry, and a training's own."""
    return [
        {
            "kind": "training",
            "id": row.id,
            "sweep": row.lineup,
            "started_at": row.started_at,
            "workload": row.workload,
            "framework": row.framework,
            "device": row.device,
            "mode": "training",
            "batch_size": row.batch_size,
            "dtype": row.dtype,
            "outcome": row.outcome,
            "step_s": None,
            "samples_s": row.samples_s,
            "names": [row.name],
            "epochs": row.epochs,
            "accuracy": row.accuracy,
            "folder": os.fsencode(row.path).decode(errors="backslashreplace"),
        }
        for row in rows
    ]


def _line(row: TrainingRow) -> tuple[str, ...]:
    values = (
        row.id,
        row.name,
        moment(row.started_at),
        row.workload,
        "" if row.batch_size is None else str(row.batch_size),
        row.dtype,
        row.framework,
        row.device,
        str(row.epochs),
        "-" if row.accuracy is None else f"{row.accuracy * 100:.2f}%",
        "-" if row.samples_s is None else figures(row.samples_s),
        row.outcome,
    )
    return tuple(printable(value).replace("\n", " ").replace("\t", " ") for value in values)
