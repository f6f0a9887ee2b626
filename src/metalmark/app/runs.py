"""List, show, name, export, import, push and delete runs of every kind."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.machine.durable import write_whole
from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Sweep
from metalmark.model.run import RunKind
from metalmark.model.training import TrainingRun
from metalmark.store.address import Address, StoreChoice, local_folder, store_address
from metalmark.store.bundle import Bundle, encode_bundle, read_file
from metalmark.store.row import Row
from metalmark.store.selection import Selection, load, select_all, stored_rows
from metalmark.store.store import Store

if TYPE_CHECKING:  # a list of runs must not take as long as a use case that measures takes to import
    from metalmark.app.results import Runs

NEWEST = 40

OnDamaged = Callable[[MetalmarkError], None]
"""Told of each run that can't be read and is left out."""


class Listing(Struct, frozen=True, kw_only=True):
    """What a store holds, without reading its runs: the newest rows, the newest last."""

    rows: tuple[Row, ...]
    total: int
    names: dict[str, list[str]]
    store: Address


class Imported(Struct, frozen=True, kw_only=True):
    added: int
    held: int
    """Number of runs that were in the store already."""
    names: int
    """Number of names that were taken over."""
    names_left: bool
    """Whether a file had names that were not taken over."""


def say_left_out(error: MetalmarkError) -> None:
    """A run that can't be read costs that run alone."""
    from metalmark.track.launch import say_on_stderr

    say_on_stderr(f"left out: {error.message} {error.hint}".rstrip())


def runs(*queries: str, limit: int = NEWEST, store: StoreChoice = None, on_damaged: OnDamaged = say_left_out) -> "Runs":
    """Return stored runs: those that the queries mean, or the newest ones.

    A query is a run's id or the beginning of one, a sweep's id, a name, a tag, "last" for what the newest command
    made, the folder of a training, or a file of `metalmark runs export`. `on_damaged` is told of each run that can't
    be read; where nothing else is left, that is raised.
    """
    from metalmark.app.results import Runs

    path = store_address(store)
    with Store(path, readonly=True) as opened:
        if not queries:
            return Runs(opened.load(opened.rows(limit=limit), on_error=on_damaged), store=path, as_list=True)
        selections = select_all(queries, opened)
        chosen = load(selections, opened, on_error=on_damaged)
        return Runs(chosen, store=path, sweep=_whole_sweep(selections, opened, on_damaged))


def existing_store(store: StoreChoice = None) -> Address:
    """Return where the store is; refuse a file that is not there, and what is not a store."""
    path = store_address(store)
    if isinstance(path, Path) and not path.exists():
        raise StoreError(f"There is no store yet at {path}.", hint="Measure something first: metalmark bench mnist-mlp")
    with Store(path, readonly=True):
        return path


def list_runs(*, limit: int | None = NEWEST, store: StoreChoice = None) -> Listing:
    path = store_address(store)
    with Store(path, readonly=True) as opened:
        rows = tuple(opened.rows(limit=limit))
        return Listing(rows=rows, total=opened.count(), names=opened.names(), store=path)


def describe_runs(chosen: "Runs", *, on_damaged: OnDamaged = say_left_out) -> str:
    """Say how and where runs ran: the machine, the versions, and the figures of each that is not one of very many."""
    from metalmark.report.text.run_page import run_page
    from metalmark.results.ceilings import ceilings_of
    from metalmark.workloads.ceiling import COPY, MATMUL

    with Store(chosen.store, readonly=True) as opened:
        measured = opened.of_workloads([MATMUL, COPY], on_error=on_damaged)
        ceilings = ceilings_of([run for run in measured if isinstance(run, BenchRun)])
        trainings = [run.id for run in chosen if isinstance(run, TrainingRun)]
        rows = [row for name in trainings for row in opened.rows_called(name)]
    folders = [f"training {row.id}: {row.path}" for row in rows if row.path is not None]
    return "\n".join([run_page(chosen, ceilings), *folders])


def name_runs(queries: Sequence[str], name: str, *, add: bool = False, store: StoreChoice = None) -> list[str]:
    """Give runs a name, which until now may have been another's; with `add`, a tag beside those that have it. Return
    the ids of the runs and sweeps that it now stands for."""
    with Store(store_address(store)) as opened:
        selections = select_all(queries, opened, files=False)
        ids = list(dict.fromkeys(identifier for selection in selections for identifier in selection.ids))
        opened.name(name, ids, add=add)
    return ids


def unname_runs(name: str, *, store: StoreChoice = None) -> None:
    """Take a name or tag away; the runs stay."""
    with Store(store_address(store)) as opened:
        if not opened.unname(name):
            raise UsageError(f"No run has the name {name!r}.", hint="`metalmark runs list` shows the names.")


def export_runs(
    queries: Sequence[str] = (),
    *,
    bundle: bool = False,
    with_names: bool = False,
    scrub: bool = False,
    store: StoreChoice = None,
    on_damaged: OnDamaged = say_left_out,
) -> tuple[bytes, int]:
    """Return runs (default: all) as a file's bytes and their number: JSON, or a compressed bundle that was looked
    through for personal data."""
    if (with_names or scrub) and not bundle:
        raise UsageError("--with-names and --scrub are of a bundle.", hint="Add --bundle FILE.")
    with Store(store_address(store), readonly=True) as opened:
        if queries:
            chosen = load(select_all(queries, opened), opened, on_error=on_damaged)
        else:
            chosen = opened.load(opened.rows(), on_error=on_damaged)
        named = opened.names() if with_names else {}
    if not bundle:
        return encode_export(chosen), len(chosen)
    ids = {one for run in chosen for one in (run.id, run.header.sweep) if one}
    names: dict[str, list[str]] = {}
    for identifier, given in named.items():
        for name in given if identifier in ids else ():
            names.setdefault(name, []).append(identifier)
    return encode_bundle(chosen, names=names, scrubs=scrub), len(chosen)


def write_file(name: str, data: bytes, *, option: str = "-o") -> None:
    """Write a file whole or not at all. A link is followed, and a device or a pipe is written into."""
    try:
        write_whole(Path(name), data)
    except (OSError, ValueError) as error:  # ValueError: no file can have that name
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{name} can't be written: {why}.", hint=f"Name another file with {option}.") from error


def import_runs(
    files: Sequence[str | os.PathLike[str]], *, with_names: bool = False, store: StoreChoice = None
) -> Imported:
    """Store the runs of exports and bundles: of all the files, or nothing. A name is added to what it stands for here,
    so a file of others never takes `main` away from a run of ours."""
    read = [read_file(os.fspath(name)) for name in files]
    every = [run for one in read for run in one.runs]
    with Store(store_address(store)) as opened:
        added = opened.add_all(every)
        names = _names(read) if with_names else {}
        for name, ids in names.items():
            opened.name(name, ids, add=True)
    left = not with_names and any(one.names for one in read)
    return Imported(added=added, held=len(every) - added, names=len(names), names_left=left)


def rows_to_delete(queries: Sequence[str], *, store: StoreChoice = None) -> list[Row]:
    """Return what `delete_runs` would delete, to ask the user first."""
    with Store(store_address(store), readonly=True) as opened:
        return stored_rows(select_all(queries, opened, files=False), what="delete")


def delete_runs(rows: Sequence[Row], *, store: StoreChoice = None) -> list[str]:
    """Delete runs for good, a training with its folder if that is Metalmark's own. Return a line for each folder that
    stayed."""
    path = store_address(store)
    home, stayed = (local_folder(path) / "trainings").resolve(), []
    with Store(path) as opened:
        for row in rows:
            folder = row.path
            if row.kind != RunKind.TRAINING or folder is None or not folder.is_dir():
                continue
            if home not in folder.resolve().parents or not _remove_training(folder, row.id):
                stayed.append(f"{folder} is your own folder and was left as it is.")
        opened.delete([row.id for row in rows])
    return stayed


def push_runs(
    queries: Sequence[str],
    *,
    to: str,
    progress: bool = True,
    store: StoreChoice = None,
    on_damaged: OnDamaged = say_left_out,
) -> bool:
    """Send runs to a tracker ("mlflow", "wandb=offline"). Return whether everything arrived; the rest waits."""
    from metalmark.track.launch import push, say_nothing, say_on_stderr

    with Store(store_address(store), readonly=True) as opened:
        selections = select_all(queries, opened)
        folders = {name: path for one in selections for name, path in one.folders.items()}
        chosen = load(selections, opened, on_error=on_damaged)
    return push(chosen, to, folders=folders, say=say_on_stderr if progress else say_nothing)


def _whole_sweep(selections: Sequence[Selection], store: Store, on_damaged: OnDamaged) -> Sweep | None:
    """The sweep, where the queries mean one as a whole. One whose runs were imported stayed where it ran."""
    if len(selections) != 1 or not selections[0].sweep:
        return None
    return sweep_of(selections[0].sweep, store, on_damaged)


def sweep_of(identifier: str, store: Store, on_damaged: OnDamaged) -> Sweep | None:
    """Return what a sweep planned. None for one whose runs were imported, for several trainings, and for a damaged
    one: what else was asked for is not known, and its runs are whole."""
    try:
        return store.sweep(identifier)
    except UsageError:
        return None
    except FormatError as error:
        on_damaged(error)
        return None


def _names(bundles: Sequence[Bundle]) -> dict[str, Sequence[str]]:
    return {name: ids for one in bundles for name, ids in one.names.items()}


def _remove_training(folder: Path, identifier: str) -> bool:
    """Delete the files of a training. False: another one has been written to its folder since, and nothing was done."""
    from metalmark.training.folder import BEST, JOB, LAST, LINEUP, RECORD, read_request, remove_if_empty

    try:
        if read_request(folder).id != identifier:
            return False
    except MetalmarkError:
        return False
    for name in (BEST, LAST, RECORD, JOB):
        (folder / name).unlink(missing_ok=True)
    remove_if_empty(folder)
    above = folder.parent
    if (above / LINEUP).exists() and not any(path.is_dir() for path in above.iterdir()):
        with suppress(OSError):
            (above / LINEUP).unlink()
        remove_if_empty(above)
    return True
