"""Queue: a folder on disk where a tracked run waits for its trackers. The run writes; processes of their own send.

    track/RUN.1/events.jsonl        what happened, one event per line, in order; a line without its end is not there yet
                destinations.json   where it goes, written once
                mlflow-1a2b.json    how much of it that destination has, and what went wrong
                files/              what goes with it: record.json, best.safetensors

Locks of the system say who is alive, so that a kill -9 leaves nothing to clear away: whoever writes the events holds
one, and so does, for each destination, whoever sends to it.

A queue is removed only when every destination surely has all of it. Where a file is damaged, that is in doubt.
"""

import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Self

import msgspec
from msgspec import Struct

from metalmark.errors import FormatError, StoreError
from metalmark.machine.durable import read_whole, write_struct
from metalmark.model.codec import read_json, refuse_newer
from metalmark.model.plan import Plan, Scalar
from metalmark.store.address import local_folder, store_address
from metalmark.track.destination import Destination
from metalmark.training.folder import share_file

SCHEMA = 1
"""Goes up whenever an older sender would misread a newer line."""
EVENTS, WRITER, FILES, DESTINATIONS = "events.jsonl", "writer.lock", "files", "destinations.json"
AGAIN = "its file was damaged, so all of it is sent again"
MOST_SESSIONS = 10_000
LOOKS, LOOK_S = 5, 0.02
"""Whoever only looks whether a lock is held, holds it for a moment."""


class MetricAxis(StrEnum):
    STEP = "step"
    EPOCH = "epoch"
    SECONDS = "seconds"
    """From the beginning of the run; for a resumed one, of its first session."""


class EndStatus(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    """Stopped by Ctrl-C, or nobody came to write its end."""


class Begin(Struct, frozen=True, kw_only=True, tag="begin"):
    """The first event of every queue. If the tracker has a run of this id, that run is continued."""

    schema: int = SCHEMA
    id: str
    name: str
    kind: str
    """"training", "bench" or "run" (a watched loop)."""
    at_ms: int
    """Milliseconds since 1970, as in every event."""
    group: str = ""
    """The sweep, whose runs belong together."""
    params: dict[str, Scalar] = {}
    tags: dict[str, str] = {}


class Known(Struct, frozen=True, kw_only=True, tag="known"):
    """Params and tags that were not known at the beginning."""

    params: dict[str, Scalar] = {}
    tags: dict[str, str] = {}


class MetricRow(Struct, frozen=True, kw_only=True, tag="row"):
    """Numbers at one position of one axis, by which a tracker sees what it has already. None: not finite."""

    axis: MetricAxis
    x: float
    at_ms: int
    values: dict[str, float | None]


class AttachedFile(Struct, frozen=True, kw_only=True, tag="file"):
    """A file in the queue's folder, to be kept beside the run."""

    name: str


class AttachedModel(Struct, frozen=True, kw_only=True, tag="model"):
    """A checkpoint in the queue's folder, and what is needed to build its model again."""

    name: str
    plan: Plan
    epoch: int
    classes: int
    source: str = ""
    """The file of the user's own workload. It is a path of this machine: the queue stays here, trackers get none."""


class End(Struct, frozen=True, kw_only=True, tag="end"):
    at_ms: int
    status: EndStatus


QueueEvent = Begin | Known | MetricRow | AttachedFile | AttachedModel | End
_encoder = msgspec.json.Encoder()


class Delivery(Struct, frozen=True, kw_only=True):
    """How much of a queue one destination has."""

    schema: int = SCHEMA
    destination: Destination
    sent: int = 0
    """Number of events in the last try. A try begins at the first event; a tracker skips what it has."""
    tries: int = 0
    trouble: str = ""
    """Why the last try ended early."""
    where: str = ""
    """Where a user finds the run at the tracker."""
    done: bool = False


class QueueDestinations(Struct, frozen=True, kw_only=True):
    """Where a queue goes. Its own file, since those that change with each try are the ones that get damaged."""

    schema: int = SCHEMA
    destinations: tuple[Destination, ...]


class Queue:
    """One folder, as a reader and a sender see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def id(self) -> str:
        return self.folder.name.partition(".")[0]

    def read(self, offset: int = 0) -> tuple[list[QueueEvent], int]:
        """Return the events from there on and the next offset. A damaged line is skipped: the others are whole."""
        try:
            with (self.folder / EVENTS).open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return [], offset
        whole = data[: data.rfind(b"\n") + 1]
        events: list[QueueEvent] = []
        for line in whole.split(b"\n")[:-1]:
            with suppress(FormatError):
                events.append(_event(line))
        if not offset and events and isinstance(events[0], Begin):
            refuse_newer(events[0].schema, SCHEMA, str(self.folder))
        return events, offset + len(whole)

    def file(self, name: str) -> Path:
        return self.folder / FILES / name

    def is_written(self) -> bool:
        """Tell whether its run is alive and has not ended it."""
        return _is_locked(self.folder / WRITER)

    def damage(self) -> str:
        """Return what is wrong with the events, of which no destination can have been told; mostly empty."""
        try:
            lines = (self.folder / EVENTS).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return f"{EVENTS} is gone"
        damaged = 0
        for line in lines:
            try:
                _event(line)
            except FormatError:
                damaged += 1
        if damaged:
            return f"{damaged} of {len(lines)} lines of {EVENTS} are damaged"
        told = max((delivery.sent for delivery in self.deliveries()), default=0)
        return f"{EVENTS} has {len(lines)} lines, of {told} that it had" if told > len(lines) else ""

    def deliveries(self) -> list[Delivery]:
        """Return how far each destination is; `unreadable` are those of which that can't be said."""
        return [each for each in self._states().values() if isinstance(each, Delivery)]

    def unreadable(self) -> dict[str, str]:
        """Return why nothing says how far a destination is, by its key; the key is empty where that is lost too."""
        return {key: each for key, each in self._states().items() if isinstance(each, str)}

    def delivery(self, key: str) -> Delivery:
        """Return how far that destination is. Where its file is damaged or gone, it has nothing for all we know: it is
        told everything again, and skips what it has."""
        path = self.folder / f"{key}.json"
        try:
            delivery = read_json(read_whole(path), Delivery, source=path.name)
            if delivery.destination.key != key:
                raise FormatError(f"{path.name} is damaged: it is of another destination.")
        except (FormatError, FileNotFoundError) as error:
            try:
                known = {destination.key: destination for destination in self._destinations()}
            except FormatError:
                known = {}
            if key not in known:
                raise error from None
            return Delivery(destination=known[key], trouble=AGAIN if isinstance(error, FormatError) else "")
        refuse_newer(delivery.schema, SCHEMA, path.name)
        return delivery

    def _states(self) -> dict[str, Delivery | str]:
        """Return how far each destination is, by its key, or why that can't be said."""
        states: dict[str, Delivery | str] = {}
        keys = {path.stem for path in self.folder.glob("*-*.json")}
        try:
            keys |= {destination.key for destination in self._destinations()}
        except FormatError as error:
            # There may be one that no other file names.
            states[""] = error.message
        for key in sorted(keys):
            try:
                states[key] = self.delivery(key)
            except FileNotFoundError:
                continue  # another process has just cleared it away
            except FormatError as error:
                states[key] = error.message
            except OSError as error:
                states[key] = f"{key}.json can't be read: {error.strerror}."
        return states

    def _destinations(self) -> tuple[Destination, ...]:
        path = self.folder / DESTINATIONS
        try:
            return read_json(read_whole(path), QueueDestinations, source=path.name).destinations
        except FileNotFoundError:
            return ()  # an older Metalmark wrote the queue
        except OSError as error:
            raise FormatError(f"{path.name} can't be read: {error.strerror}.") from error

    def keep(self, delivery: Delivery) -> None:
        write_struct(self.folder / f"{delivery.destination.key}.json", delivery)

    def is_sent(self, key: str) -> bool:
        """Tell whether a process is sending it there now."""
        return _is_locked(self.folder / f"{key}.lock")

    @contextmanager
    def sending(self, key: str) -> Iterator[bool]:
        """Yield True to the only process that may send there now."""
        with (self.folder / f"{key}.lock").open("ab") as file:
            yield _lock(file)

    @property
    def waits(self) -> bool:
        """Whether a destination lacks some of it, or may lack some."""
        states = self._states().values()
        return self.is_written() or not all(isinstance(each, Delivery) and each.done for each in states)

    def remove(self) -> None:
        # First: without it a destination whose file is gone is one that has everything.
        (self.folder / DESTINATIONS).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class QueueWriter:
    """The side that writes. `append` costs a write to a file; nobody who reads can make it wait."""

    def __init__(self, run_id: str, destinations: Sequence[Destination]) -> None:
        """The first event must be a Begin; until then there is nothing to send."""
        try:
            self.queue = Queue(_new_folder(run_id))
            self._lock = (self.queue.folder / WRITER).open("wb")
            _lock(self._lock)
            self._events: IO[bytes] = (self.queue.folder / EVENTS).open("ab")
            write_struct(self.queue.folder / DESTINATIONS, QueueDestinations(destinations=tuple(destinations)))
            for destination in destinations:
                self.queue.keep(Delivery(destination=destination))
        except OSError as error:
            raise StoreError(
                f"The trackers' queue {queue_root()} can't be written: {error.strerror}.",
                hint="Make room there, or go on without --track.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, *events: QueueEvent) -> None:
        self._events.write(b"".join(_encoder.encode(event) + b"\n" for event in events))
        self._events.flush()

    def attach(self, event: AttachedFile | AttachedModel, content: bytes | Path) -> None:
        """Keep a file with the queue. A path is linked: the file stays as it is when a newer one replaces it there."""
        file = self.queue.file(event.name)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            share_file(content, file)
        self.append(event)

    def end(self, end: End) -> None:
        self.append(end)
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # what a full disk did not take has been told by `append`
            self._events.close()
        self._lock.close()


def queue_root() -> Path:
    """Return the folder of all queues, beside the store's own file."""
    return local_folder(store_address()) / "track"


def queues() -> list[Queue]:
    """Return all queues in the order of their last events: a run's last session decides how the run ended."""
    folders = [path for path in queue_root().glob("*.*") if path.is_dir()]
    return [Queue(path) for path in sorted(folders, key=lambda path: (_last_event_s(path), path.name))]


def clear_sent() -> None:
    """Remove what every destination has. What is in doubt stays."""
    for queue in queues():
        with suppress(FormatError, OSError):
            if queue.deliveries() and not queue.waits and not queue.damage():
                queue.remove()


def _event(line: bytes) -> QueueEvent:
    return read_json(line, QueueEvent, source=EVENTS)  # type: ignore[arg-type]


def _last_event_s(folder: Path) -> float:
    try:
        return (folder / EVENTS).stat().st_mtime
    except OSError:  # another process has just cleared it away, or is about to write it
        return 0.0


def _new_folder(run_id: str) -> Path:
    root = queue_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(1, MOST_SESSIONS):
        folder = root / f"{run_id}.{number}"
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
