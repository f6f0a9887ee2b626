"""SqliteFile: the tables of a store in one SQLite file in WAL mode."""

import hashlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from metalmark.errors import StoreError
from metalmark.store import schema

ELSEWHERE = "Choose another store with --store FILE or METALMARK_STORE."
UNTOUCHED = f"It was left as it is. {ELSEWHERE}"

T = TypeVar("T")


class SqliteFile:
    """`readonly` never makes a file, and changes one only to bring it up to date. No path: an empty store in memory."""

    shared = False

    def __init__(self, path: Path | None, *, readonly: bool, wait_s: float) -> None:
        self._wait_s = wait_s
        self._path = path or Path(":memory:")
        try:
            with self._explained():
                self.connection = self._open(self._path, readonly) if path is not None else _empty()
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"The store {path} can't be used: {why}.", hint=ELSEWHERE) from error
        # A byte that is not text would otherwise cost every row, and not only its own.
        self.connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        self.connection.create_function("sha256", 1, _sha256, deterministic=True)

    def read(self, statement: str, values: Sequence[object] = (), /) -> list[tuple[Any, ...]]:
        with self._explained():
            return self.connection.execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[object] = (), /) -> int:
        with self._explained():
            return self.connection.execute(statement, values).rowcount

    def transact(self, work: Callable[[], T], *, alone: bool = False) -> T:  # noqa: ARG002  every writer is alone
        with self._explained(), schema.writing(self.connection):
            return work()

    def close(self) -> None:
        self.connection.close()

    def _open(self, path: Path, readonly: bool) -> sqlite3.Connection:
        try:
            mode = os.stat(path).st_mode
            exists = True
        except (FileNotFoundError, NotADirectoryError):
            exists = False
        if exists and stat.S_ISDIR(mode):
            raise StoreError(f"The store {path} is a folder.", hint="Name a file in it.")
        if exists and not stat.S_ISREG(mode):
            # SQLite would take a device for an empty file, and write its own files beside it.
            raise StoreError(f"The store {path} is not a regular file.", hint=ELSEWHERE)
        if readonly and not exists:
            return _empty()
        if not readonly:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except (OSError, RecursionError) as error:  # RecursionError: a thousand folders below each other
                why = error.strerror if isinstance(error, OSError) else "it is too deep"
                what = f"The store's folder {path.parent} can't be made: {why}."
                raise StoreError(what, hint=ELSEWHERE) from error
        # WAL writes beside the file, so its folder must be writable too.
        needed = [path, path.parent] if exists else [path.parent]
        writable = all(os.access(one, os.W_OK) for one in needed)
        if not writable and not readonly:
            raise StoreError(f"The store {path} can't be used: it is read-only.", hint=ELSEWHERE)
        # A WAL file needs its neighbours to be writable even to read; nobody writes this one, so read it as it is.
        uri = f"{Path(os.path.realpath(path)).as_uri()}?{'mode=rwc' if writable else 'immutable=1'}"
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
            raise StoreError(f"{self._path} is a SQLite file of another program.", hint=UNTOUCHED)
        if version > schema.VERSION:
            raise StoreError(
                f"The store {self._path} has version {version}; this Metalmark knows up to {schema.VERSION}.",
                hint=f"A newer Metalmark wrote it: pip install --upgrade metalmark, or: {ELSEWHERE}",
            )
        if version < 1:
            raise StoreError(f"The store {self._path} has version {version}, which never existed.", hint=UNTOUCHED)
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
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite raises inside into a StoreError."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a number that SQLite can't hold
            text = str(error).lower()
            why, hint = next((known for sign, known in _KNOWN.items() if sign in text), (str(error), ELSEWHERE))
            why = why.format(wait=self._wait_s) if "{wait" in why else why
            raise StoreError(f"The store {self._path} can't be used: {why}.", hint=hint) from error


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


def _sha256(body: bytes | None) -> bytes | None:
    """A function that PostgreSQL has, under the same name."""
    return None if body is None else hashlib.sha256(body).digest()


def _empty() -> sqlite3.Connection:
    return _created(sqlite3.connect(":memory:", isolation_level=None), wait_s=0.0)


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
