"""What is told to a tracker, as it lies in the queue: one event a line, in the order it happened. Pure data.

Rows are known by their name, axis and place on it, so that sending one twice is seen. SCHEMA goes up whenever an older
sender would misread a newer line.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from metalmark.model.plan import Plan

SCHEMA = 1

Value = str | int | float | bool


class Axis(StrEnum):
    STEP = "step"
    EPOCH = "epoch"
    SECONDS = "seconds"
    """From the beginning of the run; over a resumed one, of all its sessions."""


class Status(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    """Stopped by Ctrl-C, or nobody came to write its end."""


class Begin(Struct, frozen=True, kw_only=True, tag="begin"):
    """First in every queue. A run of this id that is there already is continued."""

    schema: int = SCHEMA
    id: str
    name: str
    kind: str
    """What left it: "training", "bench" or "run"."""
    at_ms: int
    """Since 1970, as everywhere in events."""
    group: str = ""
    """What belongs together: the sweep of a cell."""
    params: dict[str, Value] = {}
    tags: dict[str, str] = {}


class Known(Struct, frozen=True, kw_only=True, tag="known"):
    """Params and tags that were not known at the beginning."""

    params: dict[str, Value] = {}
    tags: dict[str, str] = {}


class Row(Struct, frozen=True, kw_only=True, tag="row"):
    """Numbers at one place of one axis. None: not finite."""

    axis: Axis
    x: float
    at_ms: int
    values: dict[str, float | None]


class File(Struct, frozen=True, kw_only=True, tag="file"):
    """A file of the queue's own folder, to be kept beside the run."""

    name: str


class Model(Struct, frozen=True, kw_only=True, tag="model"):
    """A checkpoint of the queue's own folder, and what is needed to build its model again."""

    name: str
    plan: Plan
    epoch: int
    classes: int
    source: str = ""
    """The user's own workload, where it is one. A path of this machine: the queue stays on it, trackers get none."""


class End(Struct, frozen=True, kw_only=True, tag="end"):
    at_ms: int
    status: Status


Event = Begin | Known | Row | File | Model | End
