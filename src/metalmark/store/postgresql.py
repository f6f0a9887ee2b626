"""PostgresqlServer: the tables of a store in a PostgreSQL database that several machines share.

SQLAlchemy holds the connection and says which errors mean that it is lost; libpq reads the address, so PGPASSWORD,
~/.pgpass, PGSSLMODE and the like work as in psql.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any, TypeVar

from metalmark.errors import NotInstalledError, ServerError, StoreError
from metalmark.store import schema
from metalmark.store.address import ServerAddress
from metalmark.store.server_errors import explain

try:
    import psycopg
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool
except ImportError as error:
    raise NotInstalledError(
        f"A postgresql:// store needs the extra `team`: {error.name or 'libpq'} is not installed.",
        hint='pip install "metalmark[team]"',
    ) from error

T = TypeVar("T")

TYPES = {"TEXT": 'TEXT COLLATE "C"', "INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION", "BLOB": "BYTEA", " STRICT": ""}
"""What the words of the tables are called here. SQLite sorts text by its bytes, as this collation does."""
WORDS = {" LIKE ?": " ILIKE ?", "?": "%s"}
"""SQLite's LIKE does not tell capital letters, and its mark for a value is another one."""
TABLES = "CREATE TABLE metalmark (version INTEGER NOT NULL)"
"""A table instead of SQLite's user_version, with one row."""
INDEXES = """
CREATE INDEX runs_by_sweep ON runs (sweep, cell, repeat);
CREATE INDEX runs_by_workload ON runs USING hash (workload);
CREATE INDEX runs_in_list ON runs (started_at, id)
"""
"""Other ones than a file's: an entry of an index is bounded here, a name is not, and a list reads no bodies anyway,
because PostgreSQL keeps long values apart from their rows."""
RETRY_S = 0.2
USUAL: dict[str, Any] = {"application_name": "metalmark", "keepalives_idle": 30, "keepalives_interval": 10,
                         "keepalives_count": 3, "tcp_user_timeout": 30_000}  # fmt: skip
"""A connection whose other end is gone is known as such within a minute."""


class PostgresqlServer:
    """Makes the tables of an empty database, brings older ones up to date, and refuses anything else untouched."""

    shared = True

    def __init__(self, address: ServerAddress, *, readonly: bool, wait_s: float) -> None:
        self._address, self._wait_s = address, wait_s
        self._connection: sqlalchemy.Connection | None = None
        self._busy = False
        self._gave_up = False
        self.is_empty = False
        try:
            self._recognise(readonly)
        except BaseException:
            self.close()
            raise

    def read(self, statement: str, values: Sequence[object] = (), /) -> list[tuple[Any, ...]]:
        return self._again(lambda: [tuple(row) for row in self._run(_translated(statement), values)])

    def write(self, statement: str, values: Sequence[object] = (), /) -> int:
        return self._again(lambda: int(self._run(_translated(statement), values).rowcount))

    def transact(self, work: Callable[[], T], *, alone: bool = False) -> T:
        def once() -> T:
            self._run("BEGIN")
            self._busy = True
            try:
                if alone:
                    self._run(f"SELECT pg_advisory_xact_lock({schema.APPLICATION_ID})")
                done = work()
                self._run("COMMIT")
            except BaseException:
                if self._is_open():
                    with suppress(ServerError):
                        self._run("ROLLBACK")
                raise
            finally:
                self._busy = False
            return done

        return self._again(once)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(DBAPIError):
                self._connection.close()
            self._connection = None

    def _again(self, act: Callable[[], T]) -> T:
        """Do it once more when the connection was lost, until the server has been away for as long as we wait. Inside
        a transaction there is nothing to repeat but the whole of it."""
        give_up_at = time.monotonic() + (0.0 if self._gave_up else self._wait_s)
        while True:
            try:
                done = act()
                self._gave_up = False
                return done
            except ServerError as error:
                if not error.passing or self._busy:
                    raise
                if time.monotonic() > give_up_at:
                    self._gave_up = True
                    raise
                time.sleep(RETRY_S)

    def _is_open(self) -> bool:
        """Return whether there is a connection. Ctrl-C in the middle of a statement leaves one that is of no use."""
        if self._connection is not None and (self._connection.invalidated or self._connection.closed):
            self.close()
        return self._connection is not None

    def _run(self, statement: str, values: Sequence[object] = ()) -> Any:
        is_open = self._is_open()
        with self._explained(connecting=not is_open):
            if not is_open:
                if self._busy:  # what was written so far is gone with the connection: the rest alone must not be kept
                    raise ServerError(f"The connection to {self._address} was lost.", passing=True)
                self._connection = _connected(self._address, self._wait_s)
            assert self._connection is not None
            return self._connection.exec_driver_sql(statement, tuple(map(_storable, values)))

    @contextmanager
    def _explained(self, *, connecting: bool) -> Iterator[None]:
        """Turn what the server or its driver raises inside into a ServerError."""
        try:
            yield
        except (DBAPIError, psycopg.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            lost = not self._is_open()
            raise explain(cause, self._address, wait_s=self._wait_s, connecting=connecting, lost=lost) from None
        except (OverflowError, UnicodeError) as error:  # a number or a text that the server can't hold
            raise ServerError(f"The store {self._address} can't be used: {error}.") from error

    def _recognise(self, readonly: bool) -> None:
        version = self._version()
        if version is None:
            self._refuse_foreign()
            if readonly:
                self.is_empty = self._version() is None
            else:
                self.transact(self._create, alone=True)
            if self.is_empty:
                return
            version = self._version()
        if version is None or version < schema.VERSION:
            self.transact(self._migrate, alone=True)
            version = self._version()
        assert version is not None
        if version > schema.VERSION:
            raise StoreError(
                f"The store {self._address} has version {version}; this Metalmark knows up to {schema.VERSION}.",
                hint="A newer Metalmark wrote it: pip install --upgrade metalmark. It was left as it is.",
            )

    def _version(self) -> int | None:
        if not self._has("metalmark"):
            return None
        found = self._run("SELECT version FROM metalmark").scalar()
        return None if found is None else int(found)

    def _has(self, table: str) -> bool:
        # Not to_regclass: it may answer from what this connection knew before it waited for another one to make them.
        query = "SELECT count(*) FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)"
        return bool(self._run(query, (table,)).scalar())

    def _refuse_foreign(self) -> None:
        names = ("runs", "sweeps", "names")
        # In this order: another process may make all of them, at once, in between.
        if any(map(self._has, names)) and self._version() is None:
            raise StoreError(
                f"The database {self._address} holds tables of another program.",
                hint="It was left as it is. Make one for Metalmark: createdb metalmark",
            )

    def _create(self) -> None:
        if self._version() is None:  # else another process has done it meanwhile
            for statement in f"{TABLES};{schema.TABLES};{INDEXES}".split(";"):
                self._run(_named_here(statement))
            self._run(f"INSERT INTO metalmark VALUES ({schema.VERSION})")

    def _migrate(self) -> None:
        for number in range(self._version() or schema.VERSION, schema.VERSION):
            for statement in schema.STEPS[number].split(";"):
                self._run(_named_here(statement))
            self._run(f"UPDATE metalmark SET version = {number + 1}")


@cache
def _engine(address: ServerAddress, wait_s: float) -> sqlalchemy.Engine:
    """One for each address in a process: the first connection of an engine asks the server several things."""
    usual = {name: value for name, value in USUAL.items() if f"{name}=" not in address.url}
    if "connect_timeout=" not in address.url and "PGCONNECT_TIMEOUT" not in os.environ:
        usual["connect_timeout"] = max(2, round(wait_s))
    given: dict[str, Any] = {**usual, **dict(address.secrets)}

    def connect() -> psycopg.Connection[Any]:
        # Without prepared statements it works behind a pool of connections too.
        connection = psycopg.connect(address.url, autocommit=True, prepare_threshold=None, **given)
        # Whoever sleeps in the middle of a transaction, as a laptop does, must not keep the others waiting.
        connection.execute(
            f"SET lock_timeout = {int(wait_s * 1000)}; SET idle_in_transaction_session_timeout = 60000; "
            "SET client_encoding = 'UTF8'"
        )
        return connection

    return sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=connect, poolclass=NullPool, use_native_hstore=False,
        isolation_level="AUTOCOMMIT",
    )  # fmt: skip


def _connected(address: ServerAddress, wait_s: float) -> sqlalchemy.Connection:
    return _engine(address, wait_s).connect()


@lru_cache(512)
def _translated(statement: str) -> str:
    for word, here in WORDS.items():
        statement = statement.replace(word, here)
    return statement


def _named_here(statement: str) -> str:
    for word, here in TYPES.items():
        statement = statement.replace(word, here)
    return statement


def _storable(value: object) -> object:
    """PostgreSQL has no text with a zero in it: it is written by its code, as other bytes that are not text are."""
    return value.replace("\0", "\\x00") if isinstance(value, str) else value
