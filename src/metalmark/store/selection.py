"""Selection: the runs that a query means. One resolver for every verb: id, sweep, name, tag, `last`, folder, file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.store.bundle import read_file
from metalmark.store.row import Row
from metalmark.store.sqlite import LIST_THEM, Store
from metalmark.training.job import RECORD, read_record
from metalmark.training.lineup import is_lineup, read_lineup

LAST = "last"
FILE_ENDINGS = (".json", ".bundle", ".gz")


class Selection(Struct, frozen=True, kw_only=True):
    query: str
    rows: tuple[Row, ...] = ()
    """What the store has."""
    runs: tuple[AnyRun, ...] = ()
    """What a file, or a training's folder, has."""
    sweep: str = ""
    """Its id, where the query means a whole sweep."""

    @property
    def ids(self) -> tuple[str, ...]:
        """What a name is given to: a whole sweep by its own id, so that what is added to it later is named too."""
        return (self.sweep,) if self.sweep else tuple(row.id for row in self.rows)


def select(query: str, store: Store, *, files: bool = True) -> Selection:
    """Resolve one query. `files`: whether it may name a file or folder, which a page on the web may not."""
    if files and query != LAST and (selection := _in_files(query)) is not None:
        return selection
    named = store.rows_named(query)
    rows = named if named is not None else store.rows_of_last() if query == LAST else store.rows_called(query)
    if not rows:
        if files and os.sep in query:
            raise FormatError(f"{query} is neither a file nor the folder of a training.", hint=LIST_THEM)
        if query == LAST:
            raise UsageError(f"There is no run yet in {store.path}.", hint="Measure: metalmark bench mnist-mlp")
        gone = " any more" if named is not None else ""
        raise UsageError(f"There is no run, sweep or name {query!r}{gone} in {store.path}.", hint=LIST_THEM)
    whole = named is None and (query == LAST or rows[0].sweep == query.lower())
    return Selection(query=query, rows=tuple(rows), sweep=rows[0].sweep if whole else "")


def select_all(queries: Sequence[str], store: Store, *, files: bool = True) -> list[Selection]:
    """Resolve every query before anything is done with the first."""
    return [select(query, store, files=files) for query in queries]


def stored_rows(selections: Iterable[Selection], *, what: str) -> list[Row]:
    """The rows of queries that must be in the store, each once: what is in a file has no name and can't be deleted."""
    rows: dict[str, Row] = {}
    for selection in selections:
        if selection.runs:
            raise UsageError(
                f"{selection.query} is a file or folder, and {what} takes runs of the store.",
                hint=f"Import it first: metalmark runs import {selection.query}. {LIST_THEM}",
            )
        rows.update((row.id, row) for row in selection.rows)
    return list(rows.values())


def load(selections: Iterable[Selection], store: Store, *, whole_cells: bool = False) -> list[AnyRun]:
    """The runs of these queries, each once. `whole_cells`: with every repeat of a cell of which one run is named."""
    runs: dict[str, AnyRun] = {}
    for selection in selections:
        rows: Iterable[Row] = selection.rows
        if whole_cells and not selection.sweep:
            rows = store.rows_of_cells(rows)
        for run in (*selection.runs, *store.load(rows)):
            runs.setdefault(run.id, run)
    return list(runs.values())


def _in_files(query: str) -> Selection | None:
    # os.path and not Path: a query may be longer than any file's name.
    if os.path.isfile(os.path.join(query, RECORD)):
        return Selection(query=query, runs=(read_record(Path(query)),))
    if os.path.isdir(query) and is_lineup(Path(query)):
        folders = [Path(query) / member for member in read_lineup(Path(query)).members]
        return Selection(query=query, runs=tuple(read_record(folder) for folder in folders))
    if os.path.isfile(query) or query.endswith(FILE_ENDINGS):
        runs = read_file(query).runs
        if not runs:
            raise UsageError(f"{query} holds no runs.", hint="Make one with `metalmark runs export -o FILE`.")
        return Selection(query=query, runs=tuple(runs))
    return None
