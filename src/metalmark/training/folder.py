"""The folder of a training: what was asked for, the run so far and its checkpoints; and what passes to its worker."""

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from metalmark.errors import FormatError, NotInstalledError, StoreError, UsageError
from metalmark.machine.durable import flush_to_drive, read_whole, write_struct
from metalmark.model.codec import decode_versioned, read_json, refuse_newer
from metalmark.model.plan import Plan
from metalmark.model.run import SCHEMA, DeviceMemory, Failed, now_utc
from metalmark.model.training import Ending, Epoch, EpochPart, Goal, Target, TrainingRun
from metalmark.training.base import State

RECORD, JOB, LINEUP = "record.json", "job.json", "lineup.json"
BEST, LAST = "best.safetensors", "last.safetensors"
CHECKPOINT_SCHEMA = 2
WHOLE_EPOCHS = 1
"""The schema of a checkpoint at the end of an epoch, which Metalmark 0.1.0 reads too."""
METADATA = "metalmark"
START_AGAIN = "Start again in another --out."

T = TypeVar("T", bound=Struct)


class CheckpointInterval(Struct, frozen=True, kw_only=True):
    """How often a checkpoint is written within an epoch: by time, or by steps."""

    minutes: float | None = None
    steps: int | None = None

    def is_due(self, *, elapsed_s: float, steps: int) -> bool:
        """Return whether so much after the last one it is time for the next."""
        by_time = self.minutes is not None and elapsed_s >= 60 * self.minutes
        return by_time or (self.steps is not None and steps >= self.steps)


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for, as `--resume` needs it. It names the user's own files, so it stays on this machine."""

    id: str
    plan: Plan
    goal: Goal
    paths: dict[str, str] = {}
    hz: float | None = 5.0
    checkpoint_every: CheckpointInterval | None = None
    """None: after each epoch only."""
    sweep: str = ""
    """The id of the lineup that it is a member of; empty for a training by itself."""
    cell: int = 0
    repeat: int = 0
    parity: str = ""
    """What the parity check of its plan is found by in the store; empty: none was asked for."""


class TrainingJob(Struct, frozen=True, kw_only=True):
    """What a worker is given."""

    request: Request
    folder: str
    session: int
    spawned_at_s: float


class TrainingReport(Struct, frozen=True, kw_only=True):
    """What a worker leaves when it ends."""

    ending: Ending | Failed
    memory: DeviceMemory | None = None


class Member(NamedTuple):
    """A training that can begin or go on: what was asked for, the run so far, and its folder."""

    request: Request
    run: TrainingRun
    folder: Path


class Changes(Struct, frozen=True, kw_only=True):
    """What a resumed training may do otherwise than it was asked to: when it stops and when it writes checkpoints,
    never what it trains on. None: as before."""

    epochs: int | None = None
    target: Target | None = None
    patience: int | None = None
    checkpoint_every: CheckpointInterval | None = None

    def applied(self, request: Request) -> Request:
        replace = msgspec.structs.replace
        goal = request.goal if self.epochs is None else replace(request.goal, epochs=self.epochs)
        goal = goal if self.patience is None else replace(goal, patience=self.patience)
        goal = goal if self.target is None else goal.aimed_at(self.target)
        every = self.checkpoint_every or request.checkpoint_every
        return replace(request, goal=goal, checkpoint_every=every)


def new_run(request: Request) -> TrainingRun:
    """Return the run of a training that has not begun."""
    asked = {name: getattr(request, name) for name in ("id", "sweep", "cell", "repeat", "plan", "goal")}
    return TrainingRun(started_at=now_utc(), **asked)


def folder_name(workload: str, identifier: str) -> str:
    return f"{workload.replace(':', '-').removesuffix('.py')}-{identifier}"


def new_folder(folder: Path) -> Path:
    """Make the folder, and refuse one that holds a training already."""
    if (folder / LAST).exists() or (folder / LINEUP).exists():
        raise UsageError(
            f"{folder} holds a training already.",
            hint=f"Go on with it: metalmark train --resume={shlex.quote(str(folder))}; or give another --out.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RecursionError) as error:  # RecursionError: a thousand folders below each other
        why = error.strerror if isinstance(error, OSError) else "it is too deep"
        raise StoreError(f"{folder} can't be made: {why}.", hint="Give another --out DIR.") from error
    return folder.resolve()


def discard(folder: Path) -> None:
    """Take away a training that could not begin: bad input leaves nothing to go on with."""
    for name in (JOB, RECORD):
        (folder / name).unlink(missing_ok=True)
    remove_if_empty(folder)


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # the user's own folder may hold other things
        folder.rmdir()


def read_record(folder: Path) -> TrainingRun:
    return msgspec.structs.replace(read_struct(folder / RECORD, TrainingRun), schema=SCHEMA)


def read_request(folder: Path) -> Request:
    return read_struct(folder / JOB, Request)


def write_request(folder: Path, request: Request) -> None:
    write_struct(folder / JOB, request)


def write_record(folder: Path, run: TrainingRun) -> None:
    write_struct(folder / RECORD, run)


def read_struct(
    path: Path, kind: type[T], *, newest: int = SCHEMA, what: str = "training", hint: str = START_AGAIN
) -> T:
    """Read a file of a training's folder, or of several trainings'. `hint` says what to do when it is damaged."""
    try:
        data = read_whole(path)
    except OSError as error:
        raise UsageError(
            f"{path.parent} holds no {what}: {path.name} can't be read ({error.strerror}).",
            hint="Give the folder that `metalmark train` wrote: metalmark train --resume=DIR",
        ) from error
    return decode_versioned(data, kind, newest=newest, source=str(path), hint=hint)


class PartialEpoch(Struct, frozen=True, kw_only=True):
    """An epoch up to a step in its middle."""

    number: int
    losses: tuple[float, ...]
    """Of each step that is done: their number is the position in the epoch."""
    sizes: tuple[int, ...]
    """Samples of each of these steps."""
    parts: tuple[EpochPart, ...]
    input_s: float
    compute_s: float
    first_steps_s: float
    first_steps_samples: int
    checkpoint_s: float


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What a checkpoint's metadata says about its arrays. The curve is in it, so it can't disagree with the weights."""

    schema: int = CHECKPOINT_SCHEMA
    training: str
    framework: str
    data_digest: str
    epochs: tuple[Epoch, ...]
    partial: PartialEpoch | None = None
    """The epoch that was in its middle, where it was."""


def stored_training(folder: Path, changes: Changes | None = None) -> Member:
    """Return the training of a folder as it can go on: with the epochs of its last checkpoint."""
    request, run = read_request(folder), read_record(folder)
    checkpoint = last_checkpoint(folder)
    done = checkpoint.epochs if checkpoint is not None else ()
    return Member((changes or Changes()).applied(request), msgspec.structs.replace(run, epochs=done), folder)


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """Return what the last checkpoint says about itself, without its arrays; None where there is none yet."""
    return load_checkpoint(folder / LAST, arrays=False)[0] if (folder / LAST).exists() else None


def save_checkpoint(path: Path, checkpoint: Checkpoint, state: State) -> None:
    """Write a training's whole state into one safetensors file, all of it or nothing."""
    save_file = _safetensors("save_file")
    beside = path.with_name(path.name + ".part")
    arrays = {name: np.asarray(array, order="C") for name, array in state.items()}
    save_file(arrays, beside, metadata={METADATA: msgspec.json.encode(checkpoint).decode()})
    with beside.open("rb") as file:
        flush_to_drive(file.fileno())
    beside.replace(path)


def share_file(path: Path, other: Path) -> None:
    """Give the same file another name, which later writes of `path` do not touch."""
    beside = other.with_name(other.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:  # a file system without links
        shutil.copyfile(path, beside)
    beside.replace(other)


def load_checkpoint(path: Path, *, arrays: bool = True) -> tuple[Checkpoint, State]:
    safe_open = _safetensors("safe_open")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(METADATA, "")
            checkpoint = read_json(text, Checkpoint, source="its metadata")
            names = file.keys() if arrays else ()
            state = {name: file.get_tensor(name) for name in names}
    except Exception as error:  # safetensors raises exceptions of its own, which change with its versions
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise FormatError(
            f"{path.name} is damaged or no checkpoint of Metalmark: {why}",
            hint="Delete it to begin again; best.safetensors, if there, holds an earlier epoch.",
        ) from error
    refuse_newer(checkpoint.schema, CHECKPOINT_SCHEMA, path.name)
    return checkpoint, state


def _safetensors(name: str):  # type: ignore[no-untyped-def]
    try:
        import safetensors
        from safetensors.numpy import save_file
    except ImportError as error:
        raise NotInstalledError(
            "Checkpoints need the package safetensors, which is not installed.", hint="pip install safetensors"
        ) from error
    return {"save_file": save_file, "safe_open": safetensors.safe_open}[name]
