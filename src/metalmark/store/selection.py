"""Selection: the runs that a query means. One resolver for every verb: id, sweep, name, tag, `last`, folder, file."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from metalmark.errors import FormatError, MetalmarkError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.store.bundle import read_file
from metalmark.store.row import LINEUP, RECORD, Row, read_training
from metalmark.store.store import LIST_THEM, Store

LAST = "last"
FILE_ENDINGS = (".json", ".bundle", ".gz")


class Selection(Struct, frozen=True, kw_only=True):
    query: str
    rows: tuple[Row, ...] = ()
    """What the store has."""
    runs: tuple[AnyRun, ...] = ()
    """What a file, or a training's folder, has. `rows` are then those of the folder's trainings that are stored too."""
    run_folders: tuple[Path, ...] = ()
    """The folder of each of these runs, where they are trainings."""
    sweep: str = ""
    """Its id, where the query means a whole sweep."""
    damaged: tuple[MetalmarkError, ...] = ()
    """Why some trainings of a folder are not among the runs."""

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of trainings, by the id of the run."""
        stored = {row.id: row.path for row in self.rows if row.path is not None}
        return stored | {run.id: folder for run, folder in zip(self.runs, self.run_folders, strict=False)}

    @property
    def ids(self) -> tuple[str, ...]:
        """What a name is given to: a whole sweep by its own id, so that what is added to it later is named too."""
        return (self.sweep,) if self.sweep else tuple(row.id for row in self.rows)


def select(query: str, store: Store, *, files: bool = True) -> Selection:
    """Resolve one query. `files`: whether it may name a file or folder, which a page on the web may not."""
    files = files and query not in ("", LAST)
    if files and (selection := _in_folder(query, store)) is not None:
        return selection
    # A file by its ending alone: any other file of that name must not hide a run, a sweep or a name.
    if files and query.endswith(FILE_ENDINGS) and os.path.isfile(query):
        return _read_file(query)
    named = store.rows_named(query)
    rows = named if named is not None else store.rows_of_last() if query == LAST else store.rows_called(query)
    if not rows:
        if files and (os.path.isfile(query) or query.endswith(FILE_ENDINGS)):
            return _read_file(query)
        if files and os.sep in query:
            raise FormatError(f"{query} is neither a file nor the folder of a training.", hint=LIST_THEM)
        if query == LAST:
            raise UsageError(f"There is no run yet in {store.address}.", hint="Measure: metalmark bench mnist-mlp")
        gone = " any more" if named is not None else ""
        raise UsageError(f"There is no run, sweep or name {query!r}{gone} in {store.address}.", hint=LIST_THEM)
    whole = named is None and (query == LAST or rows[0].sweep == query.lower())
    return Selection(query=query, rows=tuple(rows), sweep=rows[0].sweep if whole else "")


def select_all(queries: Sequence[str], store: Store, *, files: bool = True) -> list[Selection]:
    """Resolve every query before anything is done with the first."""
    return [select(query, store, files=files) for query in queries]


def stored_rows(selections: Iterable[Selection], *, what: str) -> list[Row]:
    """The rows of queries that must be in the store, each once: what is in a file has no name and can't be deleted."""
    rows: dict[str, Row] = {}
    for selection in selections:
        if len(selection.rows) < len(selection.runs):
            raise UsageError(
                f"{selection.query} is a file or folder, and {what} takes runs of the store.",
                hint=f"Import it first: metalmark runs import {selection.query}. {LIST_THEM}",
            )
        rows.update((row.id, row) for row in selection.rows)
    return list(rows.values())


def load(
    selections: Iterable[Selection],
    store: Store,
    *,
    whole_cells: bool = False,
    on_error: Callable[[MetalmarkError], None] | None = None,
) -> list[AnyRun]:
    """The runs of these queries, each once. `whole_cells`: with every repeat of a cell of which one run is named.

    A run that can't be read costs that run alone: `on_error` is told of it. Where there is none, or nothing else is
    left, the error is raised.
    """
    runs: dict[str, AnyRun] = {}
    errors: list[MetalmarkError] = []
    for selection in selections:
        errors += selection.damaged
        rows: Iterable[Row] = () if selection.runs else selection.rows
        if whole_cells and not selection.sweep:
            rows = store.rows_of_cells(rows)
        for run in (*selection.runs, *store.load(rows, on_error=errors.append)):
            runs.setdefault(run.id, run)
    if errors and (on_error is None or not runs):
        raise errors[0]
    for error in {error.message: error for error in errors}.values():
        assert on_error is not None
        on_error(error)
    return list(runs.values())


def _in_folder(query: str, store: Store) -> Selection | None:
    # os.path and not Path: a query may be longer than any file's name.
    if os.path.isfile(os.path.join(query, RECORD)):
        folders = [Path(query)]
    elif os.path.isfile(os.path.join(query, LINEUP)):
        from metalmark.training.lineup import read_lineup

        folders = [Path(query) / member for member in read_lineup(Path(query)).members]
    else:
        return None
    trainings: dict[Path, AnyRun] = {}
    damaged: list[MetalmarkError] = []
    for folder in folders:
        try:
            trainings[folder] = read_training(Path(os.path.realpath(folder)))
        except MetalmarkError as error:
            damaged.append(error)
    if damaged and not trainings:
        raise damaged[0]
    runs, rows = tuple(trainings.values()), tuple(store.rows_of([run.id for run in trainings.values()]))
    return Selection(query=query, runs=runs, run_folders=tuple(trainings), rows=rows, damaged=tuple(damaged))


def _read_file(query: str) -> Selection:
    runs = read_file(query).runs
    if not runs:
        raise UsageError(f"{query} holds no runs.", hint="Make one with `metalmark runs export -o FILE`.")
    return Selection(query=query, runs=tuple(runs))
