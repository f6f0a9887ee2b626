"""What runs now: one small file a running command in a folder beside the store, for whoever looks on.

The command's own process writes it between lines of its worker's progress, replaces it whole, and takes it away at the
end. One that was left behind (kill -9) is known by its process, which is no more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import psutil  # type: ignore[import-untyped]
from msgspec import Meta, Struct

from metalmark.errors import FormatError
from metalmark.model.run import Count, Identifier

SCHEMA = 1
MOST_BYTES = 4 << 20
MOST_POINTS = 240
MOST_MISSES = 5
FORGET_S = 600.0
"""How long one that was left behind is shown as ended before it is taken away."""
SAME_S = 60.0
"""Two readings of when a process began are of one process if they differ by less: they are told by the wall clock,
which a Mac corrects when it wakes. No number is given to another process within a minute of the first one's start."""

UNITS = {"_power": "W", "_memory": "bytes", "_utilisation": "%", "_cpu": "%", "_temperature": "°C"}
"""Of a sensor's series, by how its name ends: those that are shown while it runs."""
THROUGHPUT = "throughput"

Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]


class Kind(StrEnum):
    BENCH = "bench"
    TRAIN = "train"


class Trace(Struct, frozen=True, kw_only=True):
    """One quantity as it came. `at_s` counts from the start of its worker."""

    name: str
    unit: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class Status(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: Identifier
    """Of the sweep or the training."""
    kind: Kind
    pid: Annotated[int, Meta(ge=1)]
    process_s: float
    """When that process began, by the system's clock: a number is given to another process later."""
    started_at: Moment
    updated_at: Moment
    what: str
    phase: str
    share: float | None = None
    """Of the cell or the epoch that runs."""
    done: Count
    total: Count
    left: str = ""
    traces: tuple[Trace, ...] = ()
    ended: tuple[str, ...] = ()
    """The last cells or epochs that came to their end, in a line each."""

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(float(process.create_time()) - self.process_s) < SAME_S
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    @property
    def silent_s(self) -> float:
        """Since the worker was heard of."""
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(self.updated_at)).total_seconds())


class History:
    """The points of a worker's life so far. When they are too many every second one goes, so the line stays whole."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._every, self._seen = most, 1, 0
        self._at_s: dict[str, list[float]] = {}
        self._values: dict[str, list[float]] = {}

    def see(self, at_s: float, values: Mapping[str, float]) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        for name, value in values.items():
            self._at_s.setdefault(name, []).append(round(at_s, 2))
            self._values.setdefault(name, []).append(value)
        if max(map(len, self._values.values()), default=0) >= self._most:
            self._every *= 2
            for kept in (self._at_s, self._values):
                for points in kept.values():
                    del points[::2]

    def traces(self) -> tuple[Trace, ...]:
        return tuple(
            Trace(name=name, unit=unit_of(name), at_s=tuple(at), values=tuple(self._values[name]))
            for name, at in self._at_s.items()
        )


class LiveFile:
    """The file of one running command. What goes wrong with it costs the view, never the run."""

    def __init__(self, store: Path, identifier: str) -> None:
        self._path = live_folder(store) / f"{identifier}.json"
        self._misses = 0
        self.pid, self.process_s = os.getpid(), psutil.Process().create_time()

    def write(self, status: Status) -> None:
        if self._misses >= MOST_MISSES:
            return
        beside = self._path.with_suffix(".part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Without forcing it to the disk: after a power cut nothing runs.
            beside.write_bytes(msgspec.json.encode(status))
            beside.replace(self._path)
            self._misses = 0
        except OSError:
            self._misses += 1  # once: another command that ended has just taken the empty folder away

    def remove(self) -> None:
        self._misses = MOST_MISSES
        for path in (self._path, self._path.with_suffix(".part")):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue
        try:
            self._path.parent.rmdir()
        except OSError:
            return  # others run


def live_folder(store: Path) -> Path:
    """Beside the store, as SQLite's own helpers are."""
    return store.with_name(f"{store.name}-live")


def unit_of(name: str) -> str:
    if name == THROUGHPUT:
        return "samples/s"
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def read_all(store: Path) -> list[Status]:
    """The newest first; also those whose process is gone, for a while."""
    found = [status for path in live_folder(store).glob("*.json") if (status := read(path)) is not None]
    return sorted(found, key=lambda status: status.started_at, reverse=True)


def read_one(store: Path, identifier: str) -> Status | None:
    if not (identifier.isalnum() and identifier.isascii()):
        return None
    return read(live_folder(store) / f"{identifier}.json")


def read(path: Path) -> Status | None:
    """None for what can't be read: it is of another Metalmark, or it has just gone."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        status = decode(path.read_bytes())
        if not status.alive and status.silent_s > FORGET_S:
            path.unlink(missing_ok=True)
            return None
    except (OSError, FormatError):
        return None
    return status


def clear_left_behind(store: Path) -> None:
    """Those of processes that are gone: a command that begins tidies up after one that was killed."""
    for path in live_folder(store).glob("*.json"):
        status = read(path)
        if status is not None and not status.alive:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def decode(data: bytes) -> Status:
    try:
        if msgspec.json.decode(data, type=_Versioned).schema != SCHEMA:
            raise FormatError("a status of another Metalmark")
        status = msgspec.json.decode(data, type=Status)
        datetime.fromisoformat(status.updated_at)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"not a status: {error}") from error
    return status


class _Versioned(Struct):
    schema: int
