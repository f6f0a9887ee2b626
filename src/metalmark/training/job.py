"""What passes between the command and a training's process, and what lies in a training's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import decode_versioned
from metalmark.model.plan import Plan
from metalmark.model.run import SCHEMA, DeviceMemory, Failed
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSetup
from metalmark.runner.job import Progress, write_struct
from metalmark.scrub import printable

T = TypeVar("T", bound=Struct)

RECORD, JOB = "record.json", "job.json"
BEST, LAST = "best.safetensors", "last.safetensors"


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for, as `--resume` needs it. It names the user's own files, so it stays on this machine."""

    id: str
    plan: Plan
    goal: Goal
    paths: dict[str, str] = {}
    hz: float | None = 5.0


class TrainingJob(Struct, frozen=True, kw_only=True):
    request: Request
    folder: str
    session: int
    spawned_at_s: float


class TrainingProgress(Progress, frozen=True, kw_only=True):
    """A line on the pipe. Each read loss is on one of them, so a listener can draw the curve while it grows."""

    epoch: int = 0
    step: int = 0
    """Steps done in all, over all epochs; `losses` are those of the last ones."""
    losses: tuple[float, ...] = ()
    setting: TrainingSetup | None = None
    ended: Epoch | None = None


class TrainingReport(Struct, frozen=True, kw_only=True):
    """A worker's last word."""

    ending: Ending | Failed
    memory: DeviceMemory | None = None


def read_record(folder: Path) -> TrainingRun:
    return _read(folder / RECORD, TrainingRun)


def read_request(folder: Path) -> Request:
    return _read(folder / JOB, Request)


def write_request(folder: Path, request: Request) -> None:
    write_struct(folder / JOB, request)


def write_record(folder: Path, record: TrainingRun) -> None:
    write_struct(folder / RECORD, record)


def _read(path: Path, kind: type[T]) -> T:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path.parent} holds no training: {path.name} can't be read ({error.strerror}).",
            hint="Give the folder that `metalmark train` wrote: metalmark train --resume=DIR",
        ) from error
    try:
        return decode_versioned(data, kind, newest=SCHEMA, source=str(path))
    except msgspec.DecodeError as error:
        raise FormatError(
            f"{path} is damaged: {printable(str(error))}.", hint="Start again in another --out."
        ) from error
