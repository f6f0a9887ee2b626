"""What `metalmark runs` does with trainings: shows them as their tables, deletes what is Metalmark's own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from metalmark.errors import MetalmarkError, UsageError
from metalmark.report.terminal import print_table, wide_console
from metalmark.report.training_sides import print_sides
from metalmark.report.training_table import training_table
from metalmark.store.place import store_path
from metalmark.store.trainings import TrainingRow, TrainingStore
from metalmark.training.job import BEST, JOB, LAST, RECORD, read_request
from metalmark.training.lineup import LINEUP


def show_trainings(rows: Sequence[TrainingRow], form: str | None, *, alone: bool) -> None:
    """One as its curve, several side by side; `form` json gives the records."""
    records = [row.record() for row in rows]
    if form == "json" and not alone:
        raise UsageError("Records and trainings are not of one JSON form.", hint="Show the trainings by themselves.")
    if form == "json":
        click.echo(msgspec.json.encode(records).decode())
        return
    if form is not None:
        raise UsageError(
            f"Trainings have no --{form}.", hint=f"metalmark runs show {rows[0].id} --json has the whole curve."
        )
    console = wide_console()
    if len(records) > 1:
        print_sides(records, console)
    else:
        print_table(training_table(records[0], columns=console.width), console)
    for row in rows:
        click.echo(f"training {row.id}: {row.path}")


def delete_trainings(store: TrainingStore, rows: Sequence[TrainingRow], chosen: str | None) -> list[str]:
    """Off the list; files only below the store's own folder, since another is the user's. Says what stayed."""
    home, stayed = (store_path(chosen).parent / "trainings").resolve(), []
    for row in rows:
        if not row.path.is_dir():
            continue
        if home in row.path.resolve().parents and _is_its_own(row):
            _remove(row.path)
        else:
            stayed.append(f"{row.path} is a folder of yours and was left as it is.")
    store.forget_trainings([row.id for row in rows])
    return stayed


def _is_its_own(row: TrainingRow) -> bool:
    """A folder that another training has been written to since is not this one's to delete."""
    try:
        return read_request(row.path).id == row.id
    except MetalmarkError:
        return False


def _remove(folder: Path) -> None:
    for name in (BEST, LAST, RECORD, JOB):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # something else lies in it
        folder.rmdir()
    above = folder.parent
    if (above / LINEUP).exists() and not any(path.is_dir() for path in above.iterdir()):
        (above / LINEUP).unlink()
        with suppress(OSError):
            above.rmdir()
