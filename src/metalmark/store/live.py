"""What runs now: one small file per running command in a folder beside the store, or where this machine keeps what
belongs to a server's, read by `metalmark serve`.

The command's own process writes the file as its worker's progress comes, replaces it whole, and removes it at the end.
A file that was left behind (kill -9) is recognised by its process, which is gone.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import psutil  # type: ignore[import-untyped]
from msgspec import Meta, Struct

from metalmark.errors import FormatError
from metalmark.machine.durable import read_whole
from metalmark.model.codec import read_json
from metalmark.model.run import Count, Identifier, Moment, RunKind, Seconds
from metalmark.model.tuning import Rung, TuningGoal, TuningPhase
from metalmark.store.address import Address, live_folder

SCHEMA = 2
MOST_BYTES = 4 << 20
MOST_POINTS = 240
MOST_MISSES = 5
FORGET_S = 600.0
"""How long a file that was left behind is shown as ended before it is removed."""
SAME_S = 60.0
"""Two start times that differ by less are of one process: they are read from the wall clock, which a Mac corrects when
it wakes. No process ID is given to another process within a minute of the first one's start."""

THROUGHPUT = "throughput"
UNITS = {
    THROUGHPUT: "samples/s",
    "_power": "W",
    "_memory": "bytes",
    "_utilisation": "%",
    "_cpu": "%",
    "_temperature": "°C",
    "_clock": "MHz",
    "_throttle": "",
}
"""Units of the series that are shown while a worker runs, by the ending of their name."""


class Trace(Struct, frozen=True, kw_only=True):
    """One quantity over time. `at_s` counts from the start of its worker."""

    name: str
    unit: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class LiveTuning(Struct, frozen=True, kw_only=True):
    """How far the search for the best settings of one baseline is."""

    baseline: str
    goal: TuningGoal
    phase: TuningPhase
    trying: str
    """The settings that are measured or checked now, in the words of the ladder."""
    rungs: tuple[Rung, ...] = ()
    """What has been tried so far, the baseline first."""
    node: str = ""
    """Which node of a cluster; empty: this machine."""


class LiveStatus(Struct, frozen=True, kw_only=True):
    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA
    id: Identifier
    """The id of the sweep, whose cells a bench or a tuning runs, or of the training."""
    kind: RunKind
    pid: Annotated[int, Meta(ge=1)]
    process_s: float
    """When that process began, by the system's clock: its ID is given to another process later."""
    started_at: Moment
    updated_at: Moment
    what: str
    phase: str
    share: float | None = None
    """How much of the running cell or epoch is done."""
    done: Count
    total: Count
    left: str = ""
    traces: tuple[Trace, ...] = ()
    ended: tuple[str, ...] = ()
    """The last cells or epochs that ended, one line each; of a tuning, the baselines that are done."""
    limit_s: Seconds | None = None
    """How long all of it may take; None: until it is done."""
    tunings: tuple[LiveTuning, ...] = ()
    """The searches that run now: one, or one per node of a cluster."""

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
        """Seconds since the last progress of the worker."""
        return _seconds_since(self.updated_at)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return _seconds_since(self.started_at)


class History:
    """What was seen of a worker so far. When the points are too many, every second one is dropped, so that the line
    still covers the whole time."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._every, self._seen = most, 1, 0
        self._at_s: dict[str, list[float]] = {}
        self._values: dict[str, list[float]] = {}
        self.latest: dict[str, float] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        """The lowest and the highest value by name, of points that were dropped too."""

    def see(self, at_s: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            low, high = self.ranges.get(name, (value, value))
            self.latest[name], self.ranges[name] = value, (min(low, value), max(high, value))
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
    """The file of one running command. If it can't be written, the live page lacks it; the run goes on."""

    def __init__(self, store: Address, identifier: str) -> None:
        self._path = live_folder(store) / f"{identifier}.json"
        self._misses = 0
        self.pid, self.process_s = os.getpid(), psutil.Process().create_time()

    def write(self, status: LiveStatus) -> None:
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
            self._misses += 1  # once is usual: another command that ended has just removed the empty folder

    def remove(self) -> None:
        self._misses = MOST_MISSES
        for path in (self._path, self._path.with_suffix(".part")):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # others run
            self._path.parent.rmdir()


def _seconds_since(moment: str) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def unit_of(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def read_all(store: Address) -> list[LiveStatus]:
    """Return the newest first; for a while also those whose process is gone."""
    found = [status for path in live_folder(store).glob("*.json") if (status := read(path)) is not None]
    return sorted(found, key=lambda status: status.started_at, reverse=True)


def read_one(store: Address, identifier: str) -> LiveStatus | None:
    if not (identifier.isalnum() and identifier.isascii()):
        return None
    return read(live_folder(store) / f"{identifier}.json")


def read(path: Path) -> LiveStatus | None:
    """Return None for a file that can't be read: another version wrote it, or it has just been removed."""
    try:
        status = read_json(read_whole(path, MOST_BYTES), LiveStatus, source=path.name)
        if status.silent_s > FORGET_S and not status.alive:
            path.unlink(missing_ok=True)
            return None
    except (OSError, FormatError, ValueError):  # ValueError: a moment that never was
        return None
    return status


def clear_left_behind(store: Address) -> None:
    """Remove the files of processes that are gone: a command that begins tidies up after one that was killed."""
    for path in live_folder(store).glob("*.json"):
        status = read(path)
        if status is not None and not status.alive:
            with suppress(OSError):
                path.unlink(missing_ok=True)
