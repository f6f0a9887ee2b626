"""Store: every run in one SQLite file in WAL mode. A run is committed the moment it ends, whole or not at all."""

import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.model.codec import SCHEMA_HINT, AnyRun, decode_as, encode, read_json, type_of
from metalmark.model.plan import Sweep
from metalmark.model.run import Run, now_utc
from metalmark.model.training import NOT_BEGUN, Ending, TrainingRun
from metalmark.store import schema
from metalmark.store.damage import damage_of
from metalmark.store.row import COLUMNS, RECORD, Row, read_training, repaired, storable

VARIABLE = "METALMARK_STORE"
NO_HOME = f"Name a file by its whole path, with --store FILE or {VARIABLE}."
WAIT_S = 5.0
ELSEWHERE = "Choose another store with --store FILE or METALMARK_STORE."
UNTOUCHED = f"It was left as it is. {ELSEWHERE}"
LIST_THEM = "`metalmark runs list` shows what is stored."
MOST_WORDS, MOST_NAMED = 8, 500
MOST_ROWS = 2**63 - 1
"""The largest number that SQLite takes."""
SEARCHED = ("workload", "framework", "device", "mode", "dtype", "ending", "id", "sweep", "started_at", "name", "kind")
RESERVED = {"last", "published"}
UNFINISHED = {Ending.RUNNING, NOT_BEGUN}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_COLUMNS = ", ".join(COLUMNS)
_TEXT = " || ' ' || ".join(SEARCHED)
_ORDER = "ORDER BY sweep, repeat, cell, started_at, id"
_NEWEST = """WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY workload, framework, device, dtype ORDER BY started_at DESC) AS place
        FROM runs WHERE workload IN ({names}) AND kind = 'bench'{more})
    WHERE place <= 8)"""
"""Of some workloads, bounded however often they were measured."""


def store_path(chosen: str | os.PathLike[str] | None = None) -> Path:
    """Return which file the store is: --store, METALMARK_STORE, or one under the user's data folder."""
    given = chosen or os.environ.get(VARIABLE)
    try:
        if given:
            return Path(given).expanduser()
        import platformdirs

        folder = platformdirs.user_data_dir("metalmark", appauthor=False)
        # An older platformdirs leaves the ~ in, and a folder of that name is nobody's wish.
        return Path(folder).expanduser() / "records.sqlite3"
    except RuntimeError as error:
        what = f"The store {given} can't be found" if given else "There is no place for the store"
        raise StoreError(f"{what}: this user's home folder is not known.", hint=NO_HOME) from error


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a list, the newest first, and whether there are more on either side."""

    rows: tuple[Row, ...]
    newer: bool
    older: bool


class Store:
    """`with Store(path) as store:`; `readonly` never makes a file, and changes one only to bring it up to date."""

    def __init__(self, path: Path, *, readonly: bool = False, wait_s: float = WAIT_S) -> None:
        self.path = path
        self._wait_s = wait_s
        try:
            with self._explained():
                self._connection = self._open(readonly)
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"The store {path} can't be used: {why}.", hint=ELSEWHERE) from error
        # A byte that is not text would otherwise cost every row, and not only its own.
        self._connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # Writing

    def add_sweep(self, sweep: Sweep) -> None:
        body = msgspec.json.encode(sweep)
        schema.refuse_unreadable(lambda: read_json(body, Sweep, source=f"sweep {sweep.id}"))
        values = sweep.id, sweep.created_at, body
        with self._writing() as connection:
            connection.execute("INSERT INTO sweeps VALUES (?, ?, ?)", values)

    def add(self, run: Run) -> None:
        self.add_all([run])

    def add_all(self, runs: Sequence[Run]) -> int:
        """Add those that are new, all or none. The same run twice is one; another under its id is refused."""
        added = 0
        with self._writing() as connection:
            for run in runs:
                held = self._rows("WHERE id = ?", run.id)
                damaged: list[MetalmarkError] = []
                stored = self.load(held, on_error=damaged.append)
                # Of a training whose folder was gone when it was taken over there is only the row: here is the rest.
                # What is damaged is mended.
                if not held or damaged or self._rows("WHERE id = ? AND body IS NULL", run.id):
                    schema.insert(connection, run, held[0].path if held else None)
                    added += 1
                elif stored != [decode_as(encode(run), type(run), source=f"run {run.id}")]:
                    raise StoreError(
                        f"Run {run.id} is in the store already, with other contents.",
                        hint="Nothing was imported. Two files claim the same run: one was edited.",
                    )
        return added

    def put(self, run: Run) -> None:
        """Write a run in the place of what was stored under its id, as for an explanation that was measured since."""
        with self._writing() as connection:
            schema.insert(connection, run, None)

    def put_training(self, run: TrainingRun, folder: Path) -> None:
        """Write a training as it is now, in the place of what was known of it before."""
        with self._writing() as connection:
            held = self._rows("WHERE id = ?", run.id)
            if held and not run.sweep:  # its folder is of 0.1.0, which did not write there what it belongs to
                run = msgspec.structs.replace(run, sweep=held[0].sweep, cell=held[0].cell)
            schema.insert(connection, run, folder)

    def delete(self, ids: Sequence[str]) -> int:
        with self._writing() as connection:
            return sum(connection.execute("DELETE FROM runs WHERE id = ?", (one,)).rowcount for one in ids)

    def name(self, name: str, ids: Sequence[str], *, add: bool = False) -> None:
        """From now on the name stands for these runs or sweeps alone; with `add`, for these too."""
        if name.lower() in RESERVED:
            raise UsageError(f"{name!r} has a meaning of its own.", hint="Choose another name.")
        if not NAME.fullmatch(name):
            hint = "Take letters, digits, points, hyphens and underscores, 64 at most."
            raise UsageError(f"{name!r} can't be a name.", hint=hint)
        with self._writing() as connection:
            taken = connection.execute("SELECT 1 FROM runs WHERE id = ? OR sweep = ? LIMIT 1", (name, name)).fetchone()
            if taken:
                raise UsageError(f"{name!r} is the id of a run.", hint="Choose another name.")
            if not add:
                connection.execute("DELETE FROM names WHERE name = ?", (name,))
            for one in ids:
                connection.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, one, now_utc()))

    def unname(self, name: str) -> bool:
        with self._writing() as connection:
            return connection.execute("DELETE FROM names WHERE name = ?", (storable(name),)).rowcount > 0

    # Reading rows, which decodes no run

    def rows(self, *, limit: int | None = None, sweep: str | None = None) -> list[Row]:
        """Return the newest rows, the newest last."""
        where, values = ("WHERE sweep = ?", (storable(sweep),)) if sweep else ("", ())
        most = -1 if limit is None else min(limit, MOST_ROWS)
        return self._rows(f"{where} ORDER BY started_at DESC, id DESC LIMIT ?", *values, most)[::-1]

    def count(self) -> int:
        with self._explained():
            return int(self._connection.execute("SELECT count(*) FROM runs").fetchone()[0])

    def page(self, words: Sequence[str] = (), *, before: str = "", after: str = "", limit: int = 50) -> Page:
        """Return rows that hold every word in a column or a name. `before` and `after` are the id that the page begins
        next to."""
        conditions, values = [], []
        for word in words[:MOST_WORDS]:
            condition, found = self._holding(storable(word))
            conditions.append(condition)
            values += found
        sign, cursor = (">", after) if after else ("<", before)
        place = self._rows("WHERE id = ?", storable(cursor)) if cursor else []
        if place:
            conditions.append(f"(started_at, id) {sign} (?, ?)")
            values += [place[0].started_at, place[0].id]
        direction = "ASC" if after and place else "DESC"
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = self._rows(f"{where} ORDER BY started_at {direction}, id {direction} LIMIT ?", *values, limit + 1)
        more, rows = len(rows) > limit, rows[:limit]
        if direction == "ASC":
            return Page(rows=tuple(reversed(rows)), newer=more, older=True)
        return Page(rows=tuple(rows), newer=bool(place), older=more)

    def names(self) -> dict[str, list[str]]:
        """Return the names of each run and sweep that has some, by id."""
        names: dict[str, list[str]] = {}
        with self._explained():
            for name, run in self._connection.execute("SELECT name, run FROM names ORDER BY name"):
                names.setdefault(run, []).append(name)
        return names

    def rows_named(self, name: str) -> list[Row] | None:
        """Return the rows of a name or tag, which may all be deleted by now; None where nothing has that name."""
        named = "SELECT run FROM names WHERE name = ?"
        with self._explained():
            values = (storable(name),)
            known = self._connection.execute(f"{named} LIMIT 1", values).fetchone()
        return self._rows(f"WHERE sweep IN ({named}) OR id IN ({named}) {_ORDER}", *values * 2) if known else None

    def rows_of_last(self) -> list[Row]:
        """Return the rows of what the newest command made: its sweep, or its one run."""
        newest = self._rows("ORDER BY started_at DESC, id DESC LIMIT 1")
        return self.rows_of_sweep(newest[0].sweep) if newest and newest[0].sweep else newest

    def rows_called(self, query: str) -> list[Row]:
        """Return the rows of a sweep, of an id, of a watched run's or a training folder's name, or of the only id that
        begins so."""
        query = storable(query)
        # The folder of several trainings names all of them: their names begin with its own and a stroke.
        exact = self._rows(
            f"WHERE sweep = ? OR id = ? OR name = ? OR (name > ? AND name < ? AND sweep <> '') {_ORDER}",
            *(query.lower(), query.lower(), query, f"{query}/", f"{query}0"),
        ) if query else []  # fmt: skip
        if exact:
            return exact
        beginning = self._rows("WHERE id >= ? AND id < ? LIMIT 2", *_range(query))
        if len(beginning) > 1:
            raise UsageError(f"Several runs begin with {query!r}.", hint="Give more of its characters.")
        return beginning

    def rows_of_sweep(self, sweep: str) -> list[Row]:
        return self._rows(f"WHERE sweep = ? {_ORDER}", sweep)

    def rows_of(self, ids: Iterable[str]) -> list[Row]:
        """Return the rows of these ids that are stored, in their order."""
        return [row for identifier in ids for row in self._rows("WHERE id = ?", identifier)]

    def rows_of_cells(self, rows: Iterable[Row]) -> list[Row]:
        """Return every repeat of the cells that these rows belong to: a run is one process of its cell."""
        # One command may make runs of several kinds: explanations, and bench runs that verify them.
        cells = dict.fromkeys((row.sweep, row.cell, row.kind) if row.sweep else (row.id, -1, "") for row in rows)
        found = []
        for sweep, *cell in cells:
            alone = cell[0] == -1
            where, values = ("id = ?", (sweep,)) if alone else ("sweep = ? AND cell = ? AND kind = ?", (sweep, *cell))
            found += self._rows(f"WHERE {where} {_ORDER}", *values)
        return found

    # Reading runs

    def load(self, rows: Iterable[Row], *, on_error: Callable[[MetalmarkError], None] | None = None) -> list[AnyRun]:
        """Return the runs of these rows, in that order. One that is damaged, or whose folder is gone, raises; with
        `on_error` that is told, and the others are returned."""
        loaded: list[AnyRun] = []
        for row in rows:
            with self._explained():
                found = self._connection.execute("SELECT body FROM runs WHERE id = ?", (row.id,)).fetchone()
            if found is None:  # another process has deleted it meanwhile
                continue
            try:
                loaded.append(self._run(row, found[0]))
            except MetalmarkError as error:
                if on_error is None:
                    raise
                on_error(error)
        return loaded

    def of_workloads(
        self,
        names: Sequence[str],
        *,
        frameworks: Sequence[str] = (),
        on_error: Callable[[MetalmarkError], None] | None = None,
    ) -> list[AnyRun]:
        """Return the newest few bench runs of each framework, device and dtype: of these frameworks, or of all."""
        more = f" AND framework IN ({_marks(frameworks)})" if frameworks else ""
        where = _NEWEST.format(names=_marks(names), more=more)
        return self.load(self._rows(f"{where} {_ORDER}", *names, *frameworks), on_error=on_error)

    def sweep(self, query: str) -> Sweep:
        """Return a sweep by its id, by the beginning of it, or `last`."""
        where, values = ("", ()) if query == "last" else ("WHERE id >= ? AND id < ?", _range(query))
        with self._explained():
            statement = f"SELECT id, body FROM sweeps {where} ORDER BY created_at DESC LIMIT 2"
            found = self._connection.execute(statement, values).fetchall()
        if not found:
            what = "There is no sweep yet" if query == "last" else f"There is no sweep {query!r}"
            raise UsageError(f"{what} in {self.path}.", hint=LIST_THEM)
        if query != "last" and len(found) > 1:
            raise UsageError(f"Several sweeps begin with {query!r}.", hint="Give more of its characters.")
        identifier, body = found[0]
        hint = f"Its runs are whole: metalmark runs show {identifier}. Measure what is missing with a new bench."
        return read_json(body, Sweep, source=f"Sweep {identifier} of {self.path}", hint=hint)

    def _run(self, row: Row, body: bytes | None) -> AnyRun:
        # A training that runs, or whose command was killed, is further on in its folder than in the store.
        if body is None or row.ending in UNFINISHED:
            training = None
            if row.path is not None and os.path.isfile(row.path / RECORD):
                # Where the record of the folder is damaged, what the store has is older and better than nothing.
                with suppress(*() if body is None else (MetalmarkError,)):
                    training = read_training(row.path)
            if training is not None and training.id == row.id:  # else the folder holds another one
                return training
        if body is None:
            raise UsageError(
                f"The folder of training {row.id} is gone: {row.path}.",
                hint=f"Take it off the list: metalmark runs delete {row.id} --yes",
            )
        source = f"Run {row.id} of {self.path}"
        delete = f"The other runs are not affected. Delete it: metalmark runs delete {row.id} --yes"
        try:
            run = decode_as(body, type_of(row.kind, source=source), source=source)
        except FormatError as error:
            # What a newer Metalmark wrote is not damaged.
            raise FormatError(error.message, hint=delete if error.hint == SCHEMA_HINT else error.hint) from error
        why = damage_of(run) if run.id == row.id else f"it says that it is run {run.id}"
        if why:
            raise FormatError(f"{source} is damaged: {why}.", hint=delete)
        return run

    def _rows(self, rest: str, *values: object) -> list[Row]:
        with self._explained():
            found = self._connection.execute(f"SELECT {_COLUMNS} FROM runs {rest}", values).fetchall()
        return [repaired(dict(zip(COLUMNS, each, strict=True))) for each in found]

    def _holding(self, word: str) -> tuple[str, list[str]]:
        pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        query = "SELECT DISTINCT run FROM names WHERE name LIKE ? ESCAPE '\\' LIMIT ?"
        with self._explained():
            named = [run for (run,) in self._connection.execute(query, (pattern, MOST_NAMED))]
        marks = _marks(named)
        by_name = f" OR id IN ({marks}) OR sweep IN ({marks})" if named else ""
        return f"({_TEXT} LIKE ? ESCAPE '\\'{by_name})", [pattern, *named, *named]

    # Opening

    def _open(self, readonly: bool) -> sqlite3.Connection:
        try:
            mode = os.stat(self.path).st_mode
            exists = True
        except (FileNotFoundError, NotADirectoryError):
            exists = False
        if exists and stat.S_ISDIR(mode):
            raise StoreError(f"The store {self.path} is a folder.", hint="Name a file in it.")
        if exists and not stat.S_ISREG(mode):
            # SQLite would take a device for an empty file, and write its own files beside it.
            raise StoreError(f"The store {self.path} is not a regular file.", hint=ELSEWHERE)
        if readonly and not exists:
            return _created(sqlite3.connect(":memory:", isolation_level=None), wait_s=0.0)
        if not readonly:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except (OSError, RecursionError) as error:  # RecursionError: a thousand folders below each other
                why = error.strerror if isinstance(error, OSError) else "it is too deep"
                what = f"The store's folder {self.path.parent} can't be made: {why}."
                raise StoreError(what, hint=ELSEWHERE) from error
        # WAL writes beside the file, so its folder must be writable too.
        needed = [self.path, self.path.parent] if exists else [self.path.parent]
        writable = all(os.access(path, os.W_OK) for path in needed)
        if not writable and not readonly:
            raise StoreError(f"The store {self.path} can't be used: it is read-only.", hint=ELSEWHERE)
        # A WAL file needs its neighbours to be writable even to read; nobody writes this one, so read it as it is.
        uri = f"{Path(os.path.realpath(self.path)).as_uri()}?{'mode=rwc' if writable else 'immutable=1'}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._wait_s, isolation_level=None)
        try:
            return self._recognised(connection, writable)
        except BaseException:
            connection.close()
            raise

    def _recognised(self, connection: sqlite3.Connection, writable: bool) -> sqlite3.Connection:
        """Take a store of this version, bring an older one up to date, make an empty file one; refuse anything else
        untouched."""
        # In this order: another process may make the file a store in between.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application == 0 and tables == 0:
            return _created(connection, wait_s=self._wait_s)
        if application != schema.APPLICATION_ID:
            raise StoreError(f"{self.path} is a SQLite file of another program.", hint=UNTOUCHED)
        if version > schema.VERSION:
            raise StoreError(
                f"The store {self.path} has version {version}; this Metalmark knows up to {schema.VERSION}.",
                hint=f"A newer Metalmark wrote it: pip install --upgrade metalmark, or: {ELSEWHERE}",
            )
        if version < 1:
            raise StoreError(f"The store {self.path} has version {version}, which never existed.", hint=UNTOUCHED)
        if version < schema.VERSION and not writable:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            try:
                connection.backup(copy)
                schema.migrate(copy)
            except BaseException:
                copy.close()
                raise
            connection.close()
            return copy
        _make_durable(connection)
        if version < schema.VERSION:
            schema.migrate(connection)
        return connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained(), schema.writing(self._connection):
            yield self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite raises inside into a StoreError."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a number that SQLite can't hold
            text = str(error).lower()
            why, hint = next((known for sign, known in _KNOWN.items() if sign in text), (str(error), ELSEWHERE))
            why = why.format(wait=self._wait_s) if "{wait" in why else why
            raise StoreError(f"The store {self.path} can't be used: {why}.", hint=hint) from error


_KNOWN: dict[str, tuple[str, str]] = {
    "locked": (
        "another process has held it locked for {wait:g} s",
        "Wait for the other metalmark to end, or use --store FILE.",
    ),
    "disk is full": ("the disk is full", "Free some space; what was stored before is safe."),
    "disk i/o error": ("the disk gave an input/output error", f"Check the disk's space and health. {ELSEWHERE}"),
    "readonly": ("it is read-only", f"Give yourself the right to write it, or: {ELSEWHERE}"),
    "not a database": ("it is not a SQLite file", UNTOUCHED),
    "malformed": ("it is damaged", f"It was left as it is; keep a copy before repairing it. {ELSEWHERE}"),
    "no such table": ("it holds other tables than a store's", UNTOUCHED),
    "no such column": ("it holds other tables than a store's", UNTOUCHED),
    "unable to open": ("it can't be opened or made there", f"Check that its folder exists and is yours. {ELSEWHERE}"),
}


def _created(connection: sqlite3.Connection, *, wait_s: float) -> sqlite3.Connection:
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # Of all its statements SQLite does not wait in this one, when another process makes the same store.
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
    _make_durable(connection)
    schema.create(connection)
    return connection


def _make_durable(connection: sqlite3.Connection) -> None:
    """A commit survives a power cut. On macOS that takes F_FULLFSYNC, which the last two ask for; SQLite passes over
    them on other systems, where fsync is enough."""
    for setting in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"):
        connection.execute(f"PRAGMA {setting}")


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _range(beginning: str) -> tuple[str, str]:
    """Return the range of ids that begin so, which an index serves; an empty one for what is in no id."""
    is_part = beginning.isalnum() and beginning.isascii()
    return (beginning.lower(), beginning.lower() + "~") if is_part else ("", "")
