"""What passes between the parent and a worker: a Job in a file, progress lines on a pipe (events.py), and a
WorkerReport in a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from metalmark.machine.durable import flush_to_drive
from metalmark.model.measurement import Completed
from metalmark.model.plan import Plan
from metalmark.model.run import Failed

PROGRESS_FD = "METALMARK_PROGRESS_FD"
LIFELINE_FD = "METALMARK_LIFELINE_FD"


class Job(Struct, frozen=True, kw_only=True):
    plan: Plan
    repeat: int
    paths: dict[str, str] = {}
    """Paths of the user's own files on this machine, by the names that a run has for them; never stored."""
    spawned_at_s: float
    """time.monotonic() of the parent. Both processes read the same clock, so the worker counts from this moment."""


class WorkerReport(Struct, frozen=True, kw_only=True):
    outcome: Completed | Failed
    versions: dict[str, str] = {}


def write_whole(path: Path, data: bytes) -> None:
    """Write all of it or nothing, even if the power fails: to a file beside it, forced onto the drive, then renamed."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        flush_to_drive(file.fileno())
    beside.replace(path)


def write_struct(path: Path, value: Struct) -> None:
    write_whole(path, msgspec.json.encode(value))
