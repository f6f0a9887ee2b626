"""One SQLite file in WAL mode. A record is committed the moment its cell ends, whole or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from metalmark.errors import StoreError, UsageError
from metalmark.model.codec import decode, encode
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.sweep import Sweep, now_utc
from metalmark.stats.summary import median
from metalmark.store import names as naming
from metalmark.store.layout import APPLICATION_ID, LAYOUT, LIST, NEWEST, TABLES
from metalmark.store.trouble import ELSEWHERE, explained

WAIT_S = 5.0


class Row(msgspec.Struct, frozen=True):
    """A record's line in a list: read from columns, without decoding the record."""

    id: str
    sweep: str
    started_at: str
    workload: str
    framework: str
    device: str
    mode: str
    batch_size: int | None
    dtype: str
    outcome: str
    step_s: float | None
    samples_s: float | None


BEGINS = "WHERE id >= ? AND id < ?"
_COLUMNS = ", ".join(Row.__struct_fields__)


class Store:
    """`with Store(path) as store:`; `readonly` never makes or changes a file."""

    def __init__(self, path: Path, *, readonly: bool = False, wait_s: float = WAIT_S) -> None:
        self.path = path
        self._wait_s = wait_s
        with self._explained():
            self._connection = self._open(readonly)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def add_sweep(self, sweep: Sweep) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO sweeps VALUES (?, ?, ?)", (sweep.id, sweep.created_at, msgspec.json.encode(sweep))
            )

    def add(self, record: BenchRun) -> None:
        self.add_all([record])

    def add_all(self, records: Sequence[BenchRun]) -> int:
        """Adds those that are new, all or none; the same record twice is one, another under its id is refused."""
        added = 0
        with self._writing() as connection:
            connection.execute(LIST)  # a list reads no bodies; a store made before it gains it here
            for record in records:
                body = encode(record)
                held = connection.execute("SELECT body FROM records WHERE id = ?", (record.id,)).fetchone()
                if held is not None:
                    if held[0] != body:
                        raise StoreError(
                            f"Record {record.id} is in the store already, with other contents.",
                            hint="Nothing was imported. Two files claim the same measurement: one was edited.",
                        )
                    continue
                marks = ", ".join("?" * 15)
                connection.execute(f"INSERT INTO records VALUES ({marks})", (*_columns(record), body))
                added += 1
        return added

    def rows(self, *, limit: int | None = None, sweep: str | None = None) -> list[Row]:
        """The newest last."""
        where, values = ("WHERE sweep = ?", [sweep]) if sweep else ("", [])
        query = f"SELECT {_COLUMNS} FROM records {where} ORDER BY started_at DESC, id DESC LIMIT ?"
        with self._explained():
            found = self._connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
        return [Row(*values) for values in reversed(found)]

    def count(self) -> int:
        with self._explained():
            return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def find(self, words: Sequence[str]) -> list[BenchRun]:
        """Records by name, id, the beginning of one, sweep, or `last` for the newest sweep. None given: all."""
        if not words:
            return list(self._records("", ()))
        records: dict[str, BenchRun] = {}
        for word in words:
            records.update((record.id, record) for record in self._match(word))
        return list(records.values())

    def of_sweep(self, sweep: str, cell: int | None = None) -> list[BenchRun]:
        if cell is not None:
            return list(self._records("WHERE sweep = ? AND cell = ?", (sweep, cell)))
        return list(self._records("WHERE sweep = ?", (sweep,)))

    def name(self, name: str, runs: Sequence[str], *, add: bool = False) -> None:
        """From now on it stands for these records or sweeps alone; with `add`, for these too."""
        with self._writing() as connection:
            naming.give(connection, naming.check_name(name), runs, given_at=now_utc(), add=add)

    def unname(self, name: str) -> bool:
        with self._writing() as connection:
            return naming.take_away(connection, name) > 0

    def names(self) -> dict[str, list[str]]:
        """Record or sweep → its names."""
        with self._explained():
            return naming.names_of(self._connection)

    def of_workloads(self, names: Sequence[str], *, frameworks: Sequence[str] = ()) -> list[BenchRun]:
        """The newest few of each framework, device and dtype: of these frameworks, or of all."""
        more = f" AND framework IN ({_marks(frameworks)})" if frameworks else ""
        return list(self._records(NEWEST.format(names=_marks(names), more=more), (*names, *frameworks)))

    def sweep(self, word: str) -> Sweep:
        """A sweep by id, by its beginning, or `last`."""
        where, values = ("", ()) if word == "last" else (BEGINS, _beginning(word))
        query = f"SELECT body FROM sweeps {where} ORDER BY created_at DESC LIMIT 2"
        with self._explained():
            found = self._connection.execute(query, values).fetchall()
        if not found:
            what = "There is no sweep yet" if word == "last" else f"There is no sweep {word!r}"
            raise UsageError(f"{what} in {self.path}.", hint="`metalmark runs list` shows what is stored.")
        if word != "last" and len(found) > 1:
            raise UsageError(f"Several sweeps begin with {word!r}.", hint="Give more of its characters.")
        return msgspec.json.decode(found[0][0], type=Sweep)

    def delete(self, ids: Sequence[str]) -> int:
        with self._writing() as connection:
            gone = [connection.execute("DELETE FROM records WHERE id = ?", (i,)).rowcount for i in ids]
        return sum(gone)

    def _match(self, word: str) -> list[BenchRun]:
        with self._explained():
            named = naming.runs_named(self._connection, word)
        if named:
            marks = _marks(named)
            found = list(self._records(f"WHERE sweep IN ({marks}) OR id IN ({marks})", (*named, *named)))
        elif word == "last":
            query = "WHERE sweep = (SELECT sweep FROM records ORDER BY started_at DESC LIMIT 1)"
            found = list(self._records(query, ()))
        else:
            begins = _beginning(word)
            found = list(self._records("WHERE sweep = ?", begins[:1])) or list(self._records(BEGINS, begins))
            if len(found) > 1 and any(record.sweep != begins[0] for record in found):
                raise UsageError(f"Several records begin with {word!r}.", hint="Give more of its characters.")
        if not found:
            gone = " any more" if named else ""
            raise UsageError(
                f"There is no record or sweep {word!r}{gone} in {self.path}.",
                hint="`metalmark runs list` shows what is stored.",
            )
        return found

    def _records(self, where: str, values: tuple[object, ...]) -> Iterator[BenchRun]:
        query = f"SELECT id, body FROM records {where} ORDER BY sweep, repeat, cell, started_at"
        with self._explained():
            for identifier, body in self._connection.execute(query, values):
                yield decode(body, source=f"record {identifier} of {self.path}")

    def _open(self, readonly: bool) -> sqlite3.Connection:
        exists = self.path.exists()
        if readonly and not exists:
            return _ready(sqlite3.connect(":memory:"))
        if exists and self.path.is_dir():
            raise StoreError(f"The store {self.path} is a folder.", hint="Name a file in it.")
        if not readonly:
            _make_folder(self.path)
        # WAL writes beside the file, so its folder must be writable too.
        places = [self.path, self.path.parent] if exists else [self.path.parent]
        connection = self._connect(all(os.access(place, os.W_OK) for place in places), readonly)
        try:
            self._recognise(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, writable: bool, readonly: bool) -> sqlite3.Connection:
        uri = self.path.resolve().as_uri()
        if writable:
            return sqlite3.connect(f"{uri}?mode=rwc", uri=True, timeout=self._wait_s, isolation_level=None)
        if not readonly:
            raise StoreError(f"The store {self.path} can't be used: it is read-only.", hint=ELSEWHERE)
        # A WAL file needs its neighbours to be writable even to read; nobody writes this one, so read it as it is.
        return sqlite3.connect(f"{uri}?immutable=1", uri=True, timeout=self._wait_s, isolation_level=None)

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Ours and of this layout, or empty and made ours; anything else is refused untouched."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == 0 and tables == 0:
            _ready(connection)
            return
        if application != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a SQLite file of another program.", hint=f"It was left as it is. {ELSEWHERE}"
            )
        if layout > LAYOUT:
            raise StoreError(
                f"The store {self.path} has layout {layout}; this Metalmark knows up to {LAYOUT}.",
                hint=f"A newer Metalmark wrote it: pip install --upgrade metalmark, or: {ELSEWHERE}",
            )
        _make_durable(connection)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.path, wait_s=self._wait_s)


def _ready(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    _make_durable(connection)
    connection.executescript(
        f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT}; COMMIT;"
    )
    return connection


def _make_durable(connection: sqlite3.Connection) -> None:
    """A commit survives a power cut. On macOS that takes F_FULLFSYNC, which the last two ask for; SQLite passes over
    them on other systems, where fsync is enough."""
    for setting in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"):
        connection.execute(f"PRAGMA {setting}")


def _columns(record: BenchRun) -> tuple[object, ...]:
    outcome, plan = record.outcome, record.plan
    step_s = samples_s = None
    if isinstance(outcome, Completed):
        word, device = "completed", outcome.placed_on
        step_s = median([block.elapsed_s / block.steps for block in outcome.measurement.blocks])
        samples_s = outcome.samples_per_step / step_s
    else:
        word, device = outcome.kind.value, str(plan.device)
    batch = plan.params.get("batch_size")
    return (
        *(record.id, record.sweep, record.cell, record.repeat, record.started_at),
        *(plan.workload, plan.framework, device, plan.mode.value, batch, plan.settings.dtype.value),
        *(word, step_s, samples_s),
    )


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The store's folder {path.parent} can't be made: {error.strerror}.", hint=ELSEWHERE
        ) from error


def _beginning(word: str) -> tuple[str, str]:
    """The range of ids that begin so: the index serves a range, and not every LIKE."""
    if not (word.isalnum() and word.isascii()):
        raise UsageError(f"{word!r} is not an id.", hint="`metalmark runs list` shows the ids.")
    return word.lower(), word.lower() + "~"
