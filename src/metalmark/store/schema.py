"""What a store is made of: its tables, the indexes of a file, and how an older store becomes one of this version."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from metalmark.errors import FormatError, MetalmarkError, StoreError
from metalmark.model.codec import decode_as, encode
from metalmark.model.run import Run, RunKind
from metalmark.model.watch import WatchedRun
from metalmark.store.row import COLUMNS, read_training, row_of

VERSION = 3
APPLICATION_ID = 0x4D65746D  # "Metm", so that a foreign SQLite file is known as one

IN_LIST = (
    f"CREATE INDEX runs_in_list ON runs (started_at, {', '.join(name for name in COLUMNS if name != 'started_at')})"
)
TABLES = """
CREATE TABLE sweeps (id TEXT PRIMARY KEY, created_at TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, sweep TEXT NOT NULL, cell INTEGER NOT NULL, repeat INTEGER NOT NULL,
    started_at TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, framework TEXT NOT NULL,
    device TEXT NOT NULL, mode TEXT NOT NULL, batch_size INTEGER, dtype TEXT NOT NULL, ending TEXT NOT NULL,
    step_s REAL, samples_s REAL, steps INTEGER, input_share REAL, epochs INTEGER, accuracy REAL, folder BLOB,
    parity TEXT NOT NULL DEFAULT '', body BLOB) STRICT;
CREATE TABLE names (name TEXT NOT NULL, run TEXT NOT NULL, given_at TEXT NOT NULL, PRIMARY KEY (name, run)) STRICT
"""
"""A body is NULL where the training's folder has it; `folder` is bytes, since a path need not be text, and stays on
this machine: a server's is always NULL."""
INDEXES = f"""
CREATE INDEX runs_by_sweep ON runs (sweep, cell, repeat);
CREATE INDEX runs_by_workload ON runs (workload);
CREATE INDEX runs_by_name ON runs (name);
{IN_LIST}
"""
"""Those of a file. `runs_in_list` holds all that a list shows, so that it reads no bodies."""
Execute = Callable[[str, Sequence[object]], int]
"""Runs a statement inside a transaction that somebody holds, and returns the number of rows that it changed."""


def create(connection: sqlite3.Connection) -> None:
    """Make the tables of an empty file, whole or not at all; another process may have done it meanwhile."""
    with writing(connection):
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            _run_all(connection, TABLES + ";" + INDEXES)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a store up to this version, whole or not at all; another process may have done it meanwhile."""
    with writing(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for number in range(version, VERSION):
            MIGRATIONS[number](connection)
            connection.execute(f"PRAGMA user_version = {number + 1}")


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold one transaction around what is inside, and take all of it back when it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back when the disk is full
            connection.execute("ROLLBACK")
        raise


def _run_all(connection: sqlite3.Connection, script: str) -> None:
    """Run statements inside the caller's transaction, which `executescript` would commit."""
    for statement in script.split(";"):
        connection.execute(statement)


def _executing(connection: sqlite3.Connection) -> Execute:
    return lambda statement, values: connection.execute(statement, values).rowcount


def _one_table_for_every_kind(connection: sqlite3.Connection) -> None:
    """Version 1 had a table for records, and further ones for trainings, watched runs and names once there were any."""
    old_tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    given = connection.execute("SELECT name, run, given_at FROM names").fetchall() if "names" in old_tables else []
    sweeps = connection.execute("SELECT id, created_at, body FROM sweeps").fetchall()
    connection.execute("DROP TABLE sweeps")
    if "names" in old_tables:
        connection.execute("DROP TABLE names")
    _run_all(connection, TABLES + ";" + INDEXES)
    connection.executemany("INSERT INTO sweeps VALUES (?, ?, ?)", sweeps)
    connection.executemany("INSERT INTO names VALUES (?, ?, ?)", given)
    connection.execute("""
        INSERT INTO runs (id, kind, sweep, cell, repeat, started_at, name, workload, framework, device, mode,
                          batch_size, dtype, ending, step_s, samples_s, body)
        SELECT id, 'bench', sweep, cell, repeat, started_at, '', workload, framework, device, mode,
               batch_size, dtype, outcome, step_s, samples_s, body FROM records""")
    if "trainings" in old_tables:
        _take_over_trainings(connection)
    if "watched" in old_tables:
        query = "SELECT id, name, started_at, body FROM watched"
        for identifier, name, started_at, body in connection.execute(query).fetchall():
            try:
                insert(_executing(connection), decode_as(body, WatchedRun, source=identifier))
            except (FormatError, ArithmeticError):
                # Whoever asks for it hears of the damage; the rest of the store goes on.
                values = {"id": identifier, "name": name, "started_at": started_at, "ending": "damaged", "body": body}
                _insert(_executing(connection), {**EMPTY, **values, "kind": RunKind.WATCH})
    for table in {"records", "trainings", "watched"} & old_tables:
        connection.execute(f"DROP TABLE {table}")


def _take_over_trainings(connection: sqlite3.Connection) -> None:
    """The list of version 1 pointed at folders; what these hold now becomes part of the store."""
    query = """SELECT id, lineup,
                      iif(lineup = '', 0, row_number() OVER (PARTITION BY lineup ORDER BY started_at, id) - 1),
                      name, started_at, workload, framework, device, batch_size, dtype, outcome, epochs, accuracy,
                      samples_s, folder FROM trainings"""
    names = ("id", "sweep", "cell", "name", "started_at", "workload", "framework", "device", "batch_size", "dtype",
             "ending", "epochs", "accuracy", "samples_s", "folder")  # fmt: skip
    for values in connection.execute(query).fetchall():
        row = dict(zip(names, values, strict=True))
        _insert(_executing(connection), {**EMPTY, **row, "kind": RunKind.TRAINING, "mode": "training"})
        folder = Path(os.fsdecode(row["folder"]))
        try:
            run = read_training(folder)
            if run.id == row["id"]:
                run = run if run.sweep else msgspec.structs.replace(run, sweep=row["sweep"], cell=row["cell"])
                insert(_executing(connection), run, folder)
        except (MetalmarkError, ArithmeticError):
            pass  # the folder is gone or damaged, and said so when it was asked for before too


def insert(
    execute: Execute,
    run: Run,
    folder: Path | None = None,
    *,
    name: str = "",
    new: bool = False,
    shared: bool = False,
) -> bool:
    """Write a run in the place of what was known of it before; with `new`, only where nothing was. Return whether it
    was written. `name`: what a training is called without its folder. `shared`: others read the store, and the
    folder is of this machine."""
    body = encode(run)
    refuse_unreadable(lambda: decode_as(body, type(run), source=f"run {run.id}"))
    row = row_of(run, folder)
    values = {**{column: getattr(row, column) for column in COLUMNS}, "body": body}
    if shared:
        values["folder"] = None
    return _insert(execute, {**values, "name": row.name or name}, new=new)


def refuse_unreadable(read: Callable[[], object]) -> None:
    """Read what is about to be stored. What can't be read back would be lost, and only be missed much later."""
    try:
        read()
    except FormatError as error:
        raise StoreError(
            f"What was to be stored can't be read back: {error.message}",
            hint="Nothing was stored. This is a fault of Metalmark: please report it with this message.",
        ) from error


def _insert(execute: Execute, values: dict[str, object], *, new: bool = False) -> bool:
    """One statement, so that of two writers of one id one waits for the other, on a server too."""
    marks = ", ".join("?" * len(values))
    replacing = ", ".join(f"{name} = excluded.{name}" for name in values if name != "id")
    conflict = "DO NOTHING" if new else f"DO UPDATE SET {replacing}"
    statement = f"INSERT INTO runs ({', '.join(values)}) VALUES ({marks}) ON CONFLICT (id) {conflict}"
    return execute(statement, tuple(values.values())) > 0


EMPTY: dict[str, object] = {
    **dict.fromkeys(("sweep", "started_at", "name", "workload", "framework", "device", "mode", "dtype"), ""),
    **dict.fromkeys(("cell", "repeat"), 0),
}


def _add_parity(connection: sqlite3.Connection) -> None:
    """Version 2 had no column for what a parity check found."""
    if "parity" in {column[1] for column in connection.execute("PRAGMA table_info(runs)")}:
        return  # it was of version 1 a moment ago
    connection.execute("ALTER TABLE runs ADD COLUMN parity TEXT NOT NULL DEFAULT ''")
    connection.execute("DROP INDEX runs_in_list")
    connection.execute(IN_LIST)


STEPS: dict[int, str] = {}
"""From version N to N + 1, as statements that files and servers both take. A server's store begins with version 3."""
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _one_table_for_every_kind,
    2: _add_parity,
    **{number: partial(_run_all, script=script) for number, script in STEPS.items()},
}
"""From version N to N + 1, of a file."""
