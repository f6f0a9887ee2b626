"""Watched loops in the same SQLite file as the records, in a table of their own that older stores gain when written."""

from __future__ import annotations

import msgspec

from metalmark.errors import FormatError
from metalmark.model.codec import decode_versioned
from metalmark.model.watch import SCHEMA, WatchedRun
from metalmark.store.sqlite import Store

TABLE = """
CREATE TABLE IF NOT EXISTS watched (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, started_at TEXT NOT NULL, ended TEXT NOT NULL, body BLOB NOT NULL) STRICT
"""


class WatchedStore(Store):
    def add_watched(self, run: WatchedRun) -> None:
        with self._writing() as connection:
            connection.execute(TABLE)
            connection.execute("CREATE INDEX IF NOT EXISTS watched_by_name ON watched (name)")
            row = (run.id, run.name, run.started_at, run.ended.value, msgspec.json.encode(run))
            connection.execute("INSERT INTO watched VALUES (?, ?, ?, ?, ?)", row)

    def watched(self, name: str | None = None) -> list[WatchedRun]:
        """All, or those of one name; the newest last."""
        return self._watched("") if name is None else self._watched("WHERE name = ?", name)

    def find_watched(self, word: str) -> list[WatchedRun]:
        """By id or by name; none where the word means nothing here."""
        return self._watched("WHERE id = ? OR name = ?", word, word)

    def _watched(self, where: str, *values: str) -> list[WatchedRun]:
        with self._explained():
            if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'watched'").fetchone():
                return []
            query = f"SELECT id, body FROM watched {where} ORDER BY started_at, id"
            found = self._connection.execute(query, values).fetchall()
        return [decode(body, source=f"run {identifier} of {self.path}") for identifier, body in found]


def decode(data: bytes, *, source: str) -> WatchedRun:
    try:
        return decode_versioned(data, WatchedRun, newest=SCHEMA, source=source)
    except msgspec.DecodeError as error:
        raise FormatError(f"{source} is not a watched run: {error}.") from error
