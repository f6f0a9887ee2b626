"""Database: what a store asks of whatever keeps its tables. SQLite in a file, and PostgreSQL on a server, answer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from metalmark.errors import ServerError
from metalmark.store.address import Address
from metalmark.store.sqlite import SqliteFile

T = TypeVar("T")
Values = Sequence[object]


class Database(Protocol):
    """Statements are written as SQLite takes them, with ? for each value. Whatever fails becomes a StoreError."""

    shared: bool
    """Whether other machines read it: then no path of this one is written there."""

    def read(self, statement: str, values: Values = (), /) -> list[tuple[Any, ...]]: ...

    def write(self, statement: str, values: Values = (), /) -> int:
        """Run one statement of a transaction; return how many rows it changed."""

    def transact(self, work: Callable[[], T], *, alone: bool = False) -> T:
        """Call `work` in one transaction, whole or not at all. A server may call it again, when the connection was lost
        and nobody knows whether it was committed: so it must come to the same when it is done twice. `alone`: no other
        writer is at work that asks for this too."""

    def close(self) -> None: ...


class FailedDatabase:
    """In the place of a server that could not be reached, for a store that keeps what it is given on this machine."""

    shared = True

    def __init__(self, error: ServerError) -> None:
        self._error = error

    def read(self, _statement: str, _values: Values = (), /) -> list[tuple[Any, ...]]:
        raise self._error

    def write(self, _statement: str, _values: Values = (), /) -> int:
        raise self._error

    def transact(self, _work: Callable[[], T], *, alone: bool = False) -> T:  # noqa: ARG002
        raise self._error

    def close(self) -> None: ...


def open_database(address: Address, *, readonly: bool, wait_s: float) -> Database:
    """Open what is at an address. `readonly` makes nothing: where there are no tables yet, an empty store in memory is
    read."""
    if isinstance(address, Path):
        return SqliteFile(address, readonly=readonly, wait_s=wait_s)
    from metalmark.store.postgresql import PostgresqlServer  # it takes a third of a second to import what this needs

    server = PostgresqlServer(address, readonly=readonly, wait_s=wait_s)
    if server.is_empty:
        server.close()
        return SqliteFile(None, readonly=True, wait_s=wait_s)
    return server
