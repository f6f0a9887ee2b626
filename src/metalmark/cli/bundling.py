"""What `runs export --bundle` and `runs import` do once their words are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from metalmark.errors import UsageError
from metalmark.runner.job import write_whole
from metalmark.store.bundle import Bundle, encode_bundle, read_file
from metalmark.store.damage import refuse_damaged
from metalmark.store.place import store_path
from metalmark.store.sqlite import Store


def export_bundle(runs: Sequence[str], file: str, *, store: str | None, named: bool, scrubs: bool) -> None:
    with Store(store_path(store), readonly=True) as opened:
        records = opened.find(runs)
        names = _names(opened, {one for record in records for one in (record.id, record.sweep)}) if named else {}
    data = encode_bundle(records, names=names, scrubs=scrubs)
    try:
        write_whole(Path(file), data)
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}.", hint="Name another with --bundle.") from error
    click.echo(f"{len(records)} records written to {file}, {_size(len(data))}.", err=True)


def import_files(files: Sequence[str], *, store: str | None, named: bool) -> None:
    """All of the files or nothing."""
    read = [read_file(name) for name in files]
    for name, one in zip(files, read, strict=True):
        for record in one.records:
            refuse_damaged(record, name)
    records = [record for one in read for record in one.records]
    with Store(store_path(store)) as opened:
        added = opened.add_all(records)
        given = _give(opened, read) if named else 0
    click.echo(f"{added} records imported, {len(records) - added} were there already.", err=True)
    if named:
        click.echo(f"{given} names taken over.", err=True)
    elif any(one.names for one in read):
        click.echo("Names were left aside; --with-names takes them over.", err=True)


def _names(store: Store, runs: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run, names in store.names().items():
        for name in names if run in runs else ():
            found.setdefault(name, []).append(run)
    return found


def _give(store: Store, read: Sequence[Bundle]) -> int:
    """Added to what a name stands for here: a file of others never takes `main` away from a run of ours."""
    names = {name: runs for one in read for name, runs in one.names.items()}
    for name, runs in names.items():
        store.name(name, runs, add=True)
    return len(names)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
