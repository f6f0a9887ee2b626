"""Watched: what a loop of the user's own left behind. Pure data.

No Record: that is a Plan, which can be run again and compared like for like, and its measurement between
synchronisations. Of a loop we only watched, neither is known; its times are the host's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from metalmark.model.record import Count, Identifier, Machine, Seconds, Software, Telemetry

SCHEMA = 1

Value = str | int | float | bool


class Ending(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Stretch(Struct, frozen=True, kw_only=True):
    """Neighbouring steps of one loop, from asking for the first batch to asking for the one after the last."""

    steps: Annotated[int, Meta(ge=1)]
    at_s: Seconds
    elapsed_s: Seconds
    waited_s: Seconds
    """How much of it went by until the loader gave its batches."""


class Pass(Struct, frozen=True, kw_only=True):
    """Once through a loader: an epoch, most often."""

    loop: str
    at_s: Seconds
    steps: Count
    elapsed_s: Seconds
    waited_s: Seconds
    first_wait_s: Seconds
    """Until the first batch: a loader's workers start in it."""


class Curve(Struct, frozen=True, kw_only=True):
    """One logged number over the steps. None: it was not finite."""

    name: str
    steps: tuple[int, ...]
    at_s: tuple[float, ...]
    values: tuple[float | None, ...]


class Watched(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: Identifier
    name: str
    started_at: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
    elapsed_s: Seconds
    ended: Ending
    error: str = ""
    params: dict[str, Value] = {}
    machine: Machine
    software: Software
    stretches: dict[str, tuple[Stretch, ...]] = {}
    """By loop."""
    passes: tuple[Pass, ...] = ()
    curves: tuple[Curve, ...] = ()
    telemetry: Telemetry
    notes: tuple[str, ...] = ()

    def input_wait_share(self, loop: str = "train") -> float | None:
        """Of the loop's time, how much it waited for batches. On an accelerator the host's, so an upper bound."""
        stretches = self.stretches.get(loop, ())
        elapsed_s = sum(stretch.elapsed_s for stretch in stretches)
        return sum(stretch.waited_s for stretch in stretches) / elapsed_s if elapsed_s > 0 else None

    def curve(self, name: str) -> Curve | None:
        return next((curve for curve in self.curves if curve.name == name), None)
