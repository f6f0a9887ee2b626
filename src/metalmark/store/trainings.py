"""An index of trainings in the same SQLite file as the records. The record itself lies in the training's folder.

Its table came later than the store's others: older stores gain it when a training is written to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metalmark.errors import StoreError, UsageError
from metalmark.store import names as naming
from metalmark.store.sqlite import BEGINS, Store

if TYPE_CHECKING:
    from metalmark.model.training import TrainingRun
    from metalmark.training.launch import Event, Listener

TABLE = """
CREATE TABLE IF NOT EXISTS trainings (
    id TEXT PRIMARY KEY, lineup TEXT NOT NULL, name TEXT NOT NULL, started_at TEXT NOT NULL, workload TEXT NOT NULL,
    framework TEXT NOT NULL, device TEXT NOT NULL, batch_size INTEGER, dtype TEXT NOT NULL, outcome TEXT NOT NULL,
    epochs INTEGER NOT NULL, accuracy REAL, samples_s REAL, folder BLOB NOT NULL) STRICT
"""
INDEXES = (
    "CREATE INDEX IF NOT EXISTS trainings_by_name ON trainings (name)",
    "CREATE INDEX IF NOT EXISTS trainings_by_lineup ON trainings (lineup)",
    "CREATE INDEX IF NOT EXISTS trainings_by_time ON trainings (started_at)",
)


class TrainingRow(msgspec.Struct, frozen=True):
    """A training's line in a list, and where its folder is: that stays on this machine."""

    id: str
    lineup: str
    """Of those that one command trained side by side; empty for one by itself."""
    name: str
    """Its folder's; in a line-up, both folders' with a stroke between."""
    started_at: str
    workload: str
    framework: str
    device: str
    batch_size: int | None
    dtype: str
    outcome: str
    epochs: int
    accuracy: float | None
    """Of the best epoch."""
    samples_s: float | None
    folder: bytes

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(self.folder))

    def record(self) -> TrainingRun:
        """As its folder has it now."""
        from metalmark.training.job import read_record

        if not self.path.is_dir():
            raise UsageError(
                f"The folder of training {self.id} is gone: {self.path}.",
                hint=f"Take it off the list: metalmark runs delete {self.id} --yes",
            )
        return read_record(self.path)


_COLUMNS = ", ".join(TrainingRow.__struct_fields__)
_MARKS = ", ".join("?" * len(TrainingRow.__struct_fields__))


class TrainingStore(Store):
    def add_training(self, record: TrainingRun, folder: Path, *, lineup: str = "") -> None:
        """As it is now; what was known of it before is replaced."""
        row = row_of(record, folder, lineup=lineup)
        with self._writing() as connection:
            for statement in (TABLE, *INDEXES):
                connection.execute(statement)
            values = tuple(getattr(row, name) for name in row.__struct_fields__)
            connection.execute(f"INSERT OR REPLACE INTO trainings VALUES ({_MARKS})", values)

    def trainings(self, *, limit: int | None = None) -> list[TrainingRow]:
        """The newest last."""
        found = self._trainings("ORDER BY started_at DESC, id DESC LIMIT ?", -1 if limit is None else limit)
        return found[::-1]

    def count_trainings(self) -> int:
        if not self._has_trainings():
            return 0
        with self._explained():
            return int(self._connection.execute("SELECT count(*) FROM trainings").fetchone()[0])

    def find_trainings(self, word: str) -> list[TrainingRow]:
        """By id, line-up, name, or the beginning of an id; none where the word means nothing here, or a record."""
        with self._explained():
            if word == "last" or naming.runs_named(self._connection, word):
                return []
        # A line-up's folder names all that are in it: their names begin with its own and a stroke.
        exact = self._trainings(
            "WHERE id = ? OR lineup = ? OR name = ? OR (name > ? AND name < ?) ORDER BY started_at, id",
            *(word, word, word, f"{word}/", f"{word}0"),
        )
        if exact or not (word.isalnum() and word.isascii()):
            return exact
        begins = (word.lower(), word.lower() + "~")
        found = self._trainings(f"{BEGINS} LIMIT 2", *begins)
        with self._explained():
            other = self._connection.execute(f"SELECT 1 FROM records {BEGINS} LIMIT 1", begins).fetchone()
        if len(found) > 1 or (found and other):
            raise UsageError(f"Several runs begin with {word!r}.", hint="Give more of its characters.")
        return found

    def split_trainings(self, words: Sequence[str]) -> tuple[list[str], list[TrainingRow]]:
        """Words for records, which `find` takes, and the trainings that the others mean."""
        rest: list[str] = []
        rows: dict[str, TrainingRow] = {}
        for word in words:
            found = self.find_trainings(word)
            rows.update((row.id, row) for row in found)
            if not found:
                rest.append(word)
        return rest, list(rows.values())

    def forget_trainings(self, ids: Sequence[str]) -> int:
        """Off the list; their folders stay."""
        if not self._has_trainings():
            return 0
        with self._writing() as connection:
            gone = [connection.execute("DELETE FROM trainings WHERE id = ?", (one,)).rowcount for one in ids]
        return sum(gone)

    def _trainings(self, rest: str, *values: object) -> list[TrainingRow]:
        if not self._has_trainings():
            return []
        with self._explained():
            found = self._connection.execute(f"SELECT {_COLUMNS} FROM trainings {rest}", values).fetchall()
        return [TrainingRow(*row) for row in found]

    def _has_trainings(self) -> bool:
        with self._explained():
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'trainings'"
            return self._connection.execute(query).fetchone() is not None


def row_of(record: TrainingRun, folder: Path, *, lineup: str = "") -> TrainingRow:
    from metalmark.training.derived import best, overall_samples_s

    top, pace, plan = best(record.epochs), overall_samples_s(record.epochs), record.plan
    name = f"{folder.parent.name}/{folder.name}" if lineup else folder.name
    batch = plan.params.get("batch_size")
    return TrainingRow(
        id=record.id,
        lineup=lineup,
        # A folder's name may be any bytes; the list shows those that are no text by their codes.
        name=os.fsencode(name).decode(errors="backslashreplace"),
        started_at=record.started_at,
        workload=plan.workload,
        framework=plan.framework,
        device=record.setting.placed_on if record.setting is not None else str(plan.device),
        batch_size=batch if isinstance(batch, int) else None,
        dtype=plan.settings.dtype.value,
        outcome=outcome_of(record),
        epochs=len(record.epochs),
        accuracy=top.accuracy if top is not None else None,
        samples_s=pace if isinstance(pace, float) else None,
        folder=os.fsencode(folder),
    )


def outcome_of(record: TrainingRun) -> str:
    if record.failure is not None:
        return record.failure.kind.value
    return record.ending.value if record.sessions else "not begun"


def indexing(path: Path, folder: Path, *, lineup: str, say: Callable[[str], None]) -> Listener:
    """Keeps the index up to date. A store that fails costs the index a line, never the training."""
    from metalmark.model.training import TrainingRun

    def hear(event: Event) -> None:
        if not isinstance(event, TrainingRun):
            return
        try:
            with TrainingStore(path) as store:
                store.add_training(event, folder, lineup=lineup)
        except StoreError as error:
            say(f"metalmark: this training is not in `metalmark runs list`: {error.message}")

    return hear
