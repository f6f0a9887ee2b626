"""Names and tags of runs. A name stands for what it was last given to (`main`); a tag gathers runs.

Their table came later than the store's others. It is made in the transaction that writes the first name, so a store
without it stays readable, by this Metalmark and by older ones, and a crash leaves it whole or not there.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from metalmark.errors import UsageError

TABLE = """CREATE TABLE IF NOT EXISTS names (
    name TEXT NOT NULL, run TEXT NOT NULL, given_at TEXT NOT NULL, PRIMARY KEY (name, run)) STRICT"""
RESERVED = {"last", "published"}
PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    if name.lower() in RESERVED:
        raise UsageError(f"{name!r} has a meaning of its own.", hint="Choose another name.")
    if not PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} can't be a name.", hint="Take letters, digits, points, hyphens and underscores, 64 at most."
        )
    return name


def give(connection: sqlite3.Connection, name: str, runs: Sequence[str], *, given_at: str, add: bool) -> None:
    """Inside a transaction of the caller's."""
    connection.execute(TABLE)
    taken = connection.execute("SELECT 1 FROM records WHERE id = ? OR sweep = ? LIMIT 1", (name, name)).fetchone()
    if taken:
        raise UsageError(f"{name!r} is the id of a run.", hint="Choose another name.")
    if not add:
        connection.execute("DELETE FROM names WHERE name = ?", (name,))
    for run in runs:
        connection.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, run, given_at))


def take_away(connection: sqlite3.Connection, name: str) -> int:
    if not _exists(connection):
        return 0
    return connection.execute("DELETE FROM names WHERE name = ?", (name,)).rowcount


def runs_named(connection: sqlite3.Connection, name: str) -> list[str]:
    """Ids of records and sweeps; none for a name that nothing has."""
    if not _exists(connection):
        return []
    found = connection.execute("SELECT run FROM names WHERE name = ? ORDER BY given_at, run", (name,))
    return [run for (run,) in found]


def runs_like(connection: sqlite3.Connection, pattern: str, limit: int) -> list[str]:
    """Ids of records and sweeps with a name that LIKE takes, a backslash before what is meant as it stands."""
    if not _exists(connection):
        return []
    query = "SELECT DISTINCT run FROM names WHERE name LIKE ? ESCAPE '\\' LIMIT ?"
    return [run for (run,) in connection.execute(query, (pattern, limit))]


def names_of(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Record or sweep → its names."""
    names: dict[str, list[str]] = {}
    if _exists(connection):
        for name, run in connection.execute("SELECT name, run FROM names ORDER BY name"):
            names.setdefault(run, []).append(name)
    return names


def _exists(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'names'"
    return connection.execute(query).fetchone() is not None
