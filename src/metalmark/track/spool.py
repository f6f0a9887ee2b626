"""Spool: the queue on the disk, a folder for each tracked run. The run appends; processes of their own send.

    track/RUN.1/events.jsonl        what happened, a line an event; a line without its end is not there yet
                mlflow-1a2b.json    how far that destination has it, and what went wrong
                files/              what goes with it: record.json, best.safetensors

Locks of the system say who is alive, so that a kill -9 leaves nothing to clear away: one is held by whoever writes
the events, one for each destination by whoever sends to it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec
from msgspec import Struct

from metalmark.errors import StoreError
from metalmark.model.codec import refuse_newer
from metalmark.runner.job import write_struct
from metalmark.store.place import store_path
from metalmark.track.destination import Destination
from metalmark.track.event import SCHEMA, Begin, End, Event

EVENTS, WRITER, FILES = "events.jsonl", "writer.lock", "files"
MOST_SESSIONS = 10_000
LOOKS, LOOK_S = 5, 0.02
"""Whoever only looks whether a lock is held, holds it for a moment."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class Delivery(Struct, frozen=True, kw_only=True):
    """How far one destination has it."""

    schema: int = SCHEMA
    destination: Destination
    sent: int = 0
    """Events, of the last try."""
    tries: int = 0
    trouble: str = ""
    """Why the last try ended early."""
    where: str = ""
    """What the tracker calls the run: where to look at it."""
    done: bool = False


class Queue:
    """One folder, as a reader and a sender see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name.partition(".")[0]

    def read(self, offset: int = 0) -> tuple[list[Event], int]:
        """The events from there on, and where the next will be. A damaged line is passed over: the rest is whole."""
        try:
            with (self.folder / EVENTS).open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return [], offset
        whole = data[: data.rfind(b"\n") + 1]
        events: list[Event] = []
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):
                events.append(_decoder.decode(line))
        if not offset and events and isinstance(events[0], Begin):
            refuse_newer(events[0].schema, SCHEMA, str(self.folder))
        return events, offset + len(whole)

    def file(self, name: str) -> Path:
        return self.folder / FILES / name

    def is_written(self) -> bool:
        """Whether its run is alive and has not ended it."""
        return _is_locked(self.folder / WRITER)

    def deliveries(self) -> list[Delivery]:
        found = []
        for path in sorted(self.folder.glob("*-*.json")):
            with suppress(msgspec.DecodeError, OSError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Delivery))
        return found

    def delivery(self, key: str) -> Delivery:
        return msgspec.json.decode((self.folder / f"{key}.json").read_bytes(), type=Delivery)

    def keep(self, delivery: Delivery) -> None:
        write_struct(self.folder / f"{delivery.destination.key}.json", delivery)

    def is_sent(self, key: str) -> bool:
        """Whether a process is sending it there now."""
        return _is_locked(self.folder / f"{key}.lock")

    @contextmanager
    def sending(self, key: str) -> Iterator[bool]:
        """True to the only one who may send there now."""
        with (self.folder / f"{key}.lock").open("ab") as file:
            yield _lock(file)

    @property
    def waits(self) -> bool:
        return self.is_written() or not all(delivery.done for delivery in self.deliveries())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Spool:
    """The side that writes. `append` costs a write to a file; nobody who reads can make it wait."""

    def __init__(self, identifier: str, destinations: Sequence[Destination]) -> None:
        """The first event must be a Begin; until then there is nothing to send."""
        try:
            self.queue = Queue(_new_folder(identifier))
            self._lock = (self.queue.folder / WRITER).open("wb")
            _lock(self._lock)
            self._events: IO[bytes] = (self.queue.folder / EVENTS).open("ab")
            for destination in destinations:
                self.queue.keep(Delivery(destination=destination))
        except OSError as error:
            raise StoreError(
                f"The trackers' queue {spool_root()} can't be written: {error.strerror}.",
                hint="Make room there, or go on without --track.",
            ) from error
        self.destinations = tuple(destinations)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, *events: Event) -> None:
        if not events:
            return
        self._events.write(b"".join(_encoder.encode(event) + b"\n" for event in events))
        self._events.flush()

    def add_file(self, name: str, data: bytes) -> None:
        self.queue.file(name).write_bytes(data)

    def add_link(self, name: str, path: Path) -> None:
        """The same file under a name here: it stays as it is when a newer one takes its place there."""
        there = self.queue.file(name)
        try:
            os.link(path, there)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, there)

    def end(self, end: End) -> None:
        self.append(end)
        self.close()

    def close(self) -> None:
        self._events.close()
        self._lock.close()


def spool_root() -> Path:
    """Beside the store's own file."""
    return store_path().parent / "track"


def queues() -> list[Queue]:
    """All there are, in the order of their last events: a run's last session has the last word on how it ended."""
    folders = [path for path in spool_root().glob("*.*") if path.is_dir()]
    return [Queue(path) for path in sorted(folders, key=lambda path: (_told_s(path), path.name))]


def clear_sent() -> None:
    """What every destination has is no longer needed here."""
    for queue in queues():
        if queue.deliveries() and not queue.waits:
            queue.remove()


def _told_s(folder: Path) -> float:
    try:
        return (folder / EVENTS).stat().st_mtime
    except FileNotFoundError:  # another process has just cleared it away, or is about to write it
        return 0.0


def _new_folder(identifier: str) -> Path:
    root = spool_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(1, MOST_SESSIONS):
        folder = root / f"{identifier}.{number}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            (folder / FILES).mkdir()
            return folder
    raise OSError(0, "too many queues of one run")


def _lock(file: IO[bytes]) -> bool:
    for _ in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOOK_S)
    return False


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
