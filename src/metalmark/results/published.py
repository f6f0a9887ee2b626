"""Published figures, each with what is known to be wrong with it.

`published_figures.csv` holds them with their sources; nothing in it was measured by us.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from metalmark.model.plan import Mode

FILE = Path(__file__).with_name("published_figures.csv")
STEPS = 100
NAMES = {"batch": "batch_size"}
"""The published tables' names of our parameters."""
METRICS = {"seconds_per_100_steps": f"time for {STEPS} steps, s"}
OTHER_METRICS = {"seconds_per_run": "time for the whole run, s", "seconds_per_epoch": "time for an epoch, s"}


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One published number; None: it ran out of memory."""

    workload: str
    params: dict[str, str]
    mode: Mode
    framework: str
    dtype: str
    device: str
    metric: str
    value: float | None
    source: str
    note: str


@cache
def published() -> tuple[PublishedFigure, ...]:
    with FILE.open(newline="") as file:
        return tuple(_figure(row) for row in csv.DictReader(file))


def _figure(row: dict[str, str]) -> PublishedFigure:
    pairs = (pair.split("=") for pair in row["params"].split(";"))
    params = {NAMES.get(name, name): value for name, value in pairs}
    value = float(row["value"]) if row["outcome"] == "completed" else None
    return msgspec.convert({**row, "params": params, "value": value}, PublishedFigure)
