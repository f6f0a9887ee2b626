"""What a store's file is made of: its tables and indexes, how it is known as one, and how an older one becomes this."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from metalmark.errors import MetalmarkError
from metalmark.model.codec import encode
from metalmark.model.run import Run, RunKind
from metalmark.model.watch import WatchedRun
from metalmark.store.row import COLUMNS, row_of

VERSION = 2
APPLICATION_ID = 0x4D65746D  # "Metm", so that a foreign SQLite file is known as one

TABLES = f"""
CREATE TABLE sweeps (id TEXT PRIMARY KEY, created_at TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, sweep TEXT NOT NULL, cell INTEGER NOT NULL, repeat INTEGER NOT NULL,
    started_at TEXT NOT NULL, name TEXT NOT NULL, workload TEXT NOT NULL, framework TEXT NOT NULL,
    device TEXT NOT NULL, mode TEXT NOT NULL, batch_size INTEGER, dtype TEXT NOT NULL, ending TEXT NOT NULL,
    step_s REAL, samples_s REAL, steps INTEGER, input_share REAL, epochs INTEGER, accuracy REAL, folder BLOB,
    body BLOB) STRICT;
CREATE INDEX runs_by_sweep ON runs (sweep, cell, repeat);
CREATE INDEX runs_by_workload ON runs (workload);
CREATE INDEX runs_by_name ON runs (name);
CREATE INDEX runs_in_list ON runs (started_at, {", ".join(name for name in COLUMNS if name != "started_at")});
CREATE TABLE names (name TEXT NOT NULL, run TEXT NOT NULL, given_at TEXT NOT NULL, PRIMARY KEY (name, run)) STRICT;
"""
"""`runs_in_list` holds all that a list shows, so that it reads no bodies. A body is NULL where the training's folder
has it; `folder` is bytes, since a path need not be text, and stays on this machine."""


def create(connection: sqlite3.Connection) -> None:
    connection.executescript(
        f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
    )


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a store up to this version, whole or not at all; another process may have done it meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for number in range(version, VERSION):
            MIGRATIONS[number](connection)
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _one_table_for_every_kind(connection: sqlite3.Connection) -> None:
    """Version 1 had a table for records, and further ones for trainings, watched runs and names once there were any."""
    old_tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    given = connection.execute("SELECT name, run, given_at FROM names").fetchall() if "names" in old_tables else []
    sweeps = connection.execute("SELECT id, created_at, body FROM sweeps").fetchall()
    connection.execute("DROP TABLE sweeps")
    if "names" in old_tables:
        connection.execute("DROP TABLE names")
    for statement in TABLES.split(";"):
        connection.execute(statement)
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
        for identifier, body in connection.execute("SELECT id, body FROM watched").fetchall():
            try:
                insert(connection, msgspec.json.decode(body, type=WatchedRun))
            except msgspec.DecodeError:  # whoever asks for it hears of the damage; the rest of the store goes on
                values = {"id": identifier, "kind": RunKind.WATCH, "ending": "damaged", "body": body}
                _insert(connection, {**EMPTY, **values})
    for table in {"records", "trainings", "watched"} & old_tables:
        connection.execute(f"DROP TABLE {table}")


def _take_over_trainings(connection: sqlite3.Connection) -> None:
    """The list of version 1 pointed at folders; what these hold now becomes part of the store."""
    from metalmark.training.job import read_record

    query = """SELECT id, lineup, name, started_at, workload, framework, device, batch_size, dtype, outcome, epochs,
                      accuracy, samples_s, folder FROM trainings"""
    names = ("id", "sweep", "name", "started_at", "workload", "framework", "device", "batch_size", "dtype", "ending",
             "epochs", "accuracy", "samples_s", "folder")  # fmt: skip
    for values in connection.execute(query).fetchall():
        row = dict(zip(names, values, strict=True))
        body = None
        try:
            run = read_record(Path(os.fsdecode(row["folder"])))
            if run.id == row["id"]:
                body = encode(msgspec.structs.replace(run, sweep=row["sweep"]))
        except MetalmarkError:  # the folder is gone or damaged, and said so when it was asked for before too
            pass
        _insert(connection, {**EMPTY, **row, "kind": RunKind.TRAINING, "mode": "training", "body": body})


def insert(connection: sqlite3.Connection, run: Run, folder: Path | None = None) -> None:
    """Write a run, in the place of what was known of it before."""
    row = row_of(run, folder)
    _insert(connection, {**{name: getattr(row, name) for name in COLUMNS}, "body": encode(run)})


def _insert(connection: sqlite3.Connection, values: dict[str, object]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT OR REPLACE INTO runs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


EMPTY: dict[str, object] = {
    **dict.fromkeys(("sweep", "started_at", "name", "workload", "framework", "device", "mode", "dtype"), ""),
    **dict.fromkeys(("cell", "repeat"), 0),
}

MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _one_table_for_every_kind}
"""From version N to N + 1."""
