"""Records page by page, the newest first, found by words: from columns that one index holds, without their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from metalmark.store import names as naming
from metalmark.store.sqlite import Row, Store

MOST_WORDS = 8
MOST_NAMED = 500
SEARCHED = ("workload", "framework", "device", "mode", "dtype", "outcome", "id", "sweep", "started_at")
_COLUMNS = ", ".join(Row.__struct_fields__)
_TEXT = " || ' ' || ".join(SEARCHED)


class Page(Struct, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    newer: bool
    older: bool


class SearchStore(Store):
    def page(self, words: Sequence[str] = (), *, before: str = "", after: str = "", limit: int = 50) -> Page:
        """Those that hold every word, in a column or a name. `before`, `after`: the id that the page begins next to."""
        conditions, values = [], []
        for word in words[:MOST_WORDS]:
            condition, found = self._holding(word)
            conditions.append(condition)
            values += found
        sign, cursor = (">", after) if after else ("<", before)
        place = self._place(cursor) if cursor else None
        if place is not None:
            conditions.append(f"(started_at, id) {sign} (?, ?)")
            values += place
        direction = "ASC" if after and place else "DESC"
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"SELECT {_COLUMNS} FROM records {where} ORDER BY started_at {direction}, id {direction} LIMIT ?"
        with self._explained():
            found_rows = [Row(*row) for row in self._connection.execute(query, (*values, limit + 1))]
        rows, more = found_rows[:limit], len(found_rows) > limit
        if direction == "ASC":
            return Page(rows=tuple(reversed(rows)), newer=more, older=True)
        return Page(rows=tuple(rows), newer=place is not None, older=more)

    def _holding(self, word: str) -> tuple[str, list[str]]:
        pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        with self._explained():
            named = naming.runs_like(self._connection, pattern, MOST_NAMED)
        marks = ", ".join("?" * len(named))
        by_name = f" OR id IN ({marks}) OR sweep IN ({marks})" if named else ""
        return f"({_TEXT} LIKE ? ESCAPE '\\'{by_name})", [pattern, *named, *named]

    def _place(self, identifier: str) -> tuple[str, str] | None:
        with self._explained():
            found = self._connection.execute("SELECT started_at, id FROM records WHERE id = ?", (identifier,))
            row = found.fetchone()
        return None if row is None else (row[0], row[1])
