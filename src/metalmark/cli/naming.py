"""`metalmark runs name`, `tag` and `unname`: words for runs that are easier to keep than ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from metalmark.cli.options import store_option

if TYPE_CHECKING:
    from metalmark.store.sqlite import Store


@click.command("name", epilog="\b\nExample:\n  metalmark runs name last main\n  metalmark compare main last")
@click.argument("run")
@click.argument("name")
@store_option
def name(run: str, name: str, store: str | None) -> None:
    """Give RUN the NAME, for good or until another run gets it: a baseline to compare with."""
    _give([run], name, store, add=False)


@click.command("tag", epilog="\b\nExample:\n  metalmark runs tag k3x9 p2m1 laptop")
@click.argument("runs", nargs=-1, required=True)
@click.argument("tag")
@store_option
def tag(runs: tuple[str, ...], tag: str, store: str | None) -> None:
    """Add RUNS to those that have the TAG. Processes of the same cell count together."""
    _give(runs, tag, store, add=True)


@click.command("unname", epilog="\b\nExample:\n  metalmark runs unname main")
@click.argument("name")
@store_option
def unname(name: str, store: str | None) -> None:
    """Take a NAME or tag away; the runs stay."""
    from metalmark.errors import UsageError
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    with Store(store_path(store)) as opened:
        if not opened.unname(name):
            raise UsageError(f"No run has the name {name!r}.", hint="`metalmark runs list` shows the names.")
    click.echo(f"{name} names nothing now.", err=True)


def _give(runs: Sequence[str], name: str, store: str | None, *, add: bool) -> None:
    from metalmark.store.place import store_path
    from metalmark.store.sqlite import Store

    with Store(store_path(store)) as opened:
        ids = list(dict.fromkeys(identifier for run in runs for identifier in _ids(run, opened)))
        opened.name(name, ids, add=add)
    click.echo(f"{name} names {', '.join(ids)}.", err=True)


def _ids(word: str, store: Store) -> list[str]:
    """A whole sweep by its own id, so that what `bench --resume` adds to it is named too."""
    found = store.find([word])
    if word == "last" or any(record.sweep == word.lower() for record in found):
        return [found[0].sweep]
    return [record.id for record in found]
