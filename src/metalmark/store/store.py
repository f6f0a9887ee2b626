"""Store: every run of a file, or of a server that a team shares. A run is committed the moment it ends, whole or not at
all."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from metalmark.errors import FormatError, MetalmarkError, NotInstalledError, ServerError, StoreError, UsageError
from metalmark.model.codec import SCHEMA_HINT, AnyRun, decode_as, encode, read_json, type_of
from metalmark.model.plan import Sweep
from metalmark.model.run import Run, now_utc
from metalmark.model.training import NOT_BEGUN, Ending, TrainingRun
from metalmark.store import schema, spool
from metalmark.store.address import Address, ServerAddress, spool_file
from metalmark.store.damage import damage_of
from metalmark.store.database import Database, FailedDatabase, open_database
from metalmark.store.notes import LocalNotes
from metalmark.store.row import COLUMNS, RECORD, Row, read_training, repaired, storable
from metalmark.store.succession import continues

T = TypeVar("T")

WAIT_S = 5.0
LIST_THEM = "`metalmark runs list` shows what is stored."
MOST_WORDS, MOST_NAMED, MOST_ASKED = 8, 500, 50
MOST_ROWS = 2**63 - 1
"""The largest number that a database takes."""
SEARCHED = ("workload", "framework", "device", "mode", "dtype", "ending", "id", "sweep", "started_at", "name", "kind")
RESERVED = {"last", "published"}
UNFINISHED = {Ending.RUNNING, NOT_BEGUN}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_COLUMNS = ", ".join(COLUMNS)
_TEXT = " || ' ' || ".join(SEARCHED)
MOST_CHECKS = 100
_ORDER = "ORDER BY sweep, repeat, cell, started_at, id"
_NEWEST = """WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY workload, framework, device, dtype ORDER BY started_at DESC, id DESC)
               AS place
        FROM runs WHERE workload IN ({names}) AND kind = 'bench'{more})
    AS placed WHERE place <= 8)"""
"""Of some workloads, bounded however often they were measured."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a list, the newest first, and whether there are more on either side."""

    rows: tuple[Row, ...]
    newer: bool
    older: bool


class Store:
    """`with Store(address) as store:`; `readonly` never makes a store, and changes one only to bring it up to date.

    What was just measured is never lost to a server that fails: `add`, `put` and `put_training` then write to a store
    on this machine (see spool.py). `spools`: so they do where the server can't even be reached when this is opened.
    """

    def __init__(
        self, address: Address, *, readonly: bool = False, wait_s: float = WAIT_S, spools: bool = False
    ) -> None:
        self.address = address
        self._notes = LocalNotes(address) if isinstance(address, ServerAddress) else None
        self.database: Database
        try:
            self.database = open_database(address, readonly=readonly, wait_s=wait_s)
        except (ServerError, NotInstalledError) as error:
            if not spools:
                raise
            self.database = FailedDatabase(ServerError(error.message, hint=error.hint))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    # Writing

    def add_sweep(self, sweep: Sweep) -> bool:
        """Add a sweep, and return whether it is new. The same twice is one; another under its id is refused. Paths of
        this machine stay on it."""
        if self._notes is not None:
            self._notes.write_paths(sweep.id, sweep.paths)
            sweep = msgspec.structs.replace(sweep, paths={})
        body = msgspec.json.encode(sweep)
        schema.refuse_unreadable(lambda: read_json(body, Sweep, source=f"sweep {sweep.id}"))

        def work() -> bool:
            statement = "INSERT INTO sweeps VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
            if self.database.write(statement, (sweep.id, sweep.created_at, body)):
                return True
            ((held,),) = self.database.read("SELECT body FROM sweeps WHERE id = ?", (sweep.id,))
            known = read_json(held, Sweep, source=f"Sweep {sweep.id} of {self.address}")
            if msgspec.structs.replace(known, paths={}) != msgspec.structs.replace(sweep, paths={}):
                raise StoreError(f"Sweep {sweep.id} is in the store already, with other plans.", hint=LIST_THEM)
            return False

        return self.database.transact(work)

    def add(self, run: Run) -> None:
        """Add a run that has just ended."""
        self._keep(run, lambda store: store.add_all([run]))

    def add_all(self, runs: Sequence[Run], *, names: Mapping[str, str] | None = None) -> int:
        """Add those that are new, all or none. The same run twice is one; another under its id is refused. `names`:
        what rows are called, by the run's id, where only its folder would tell."""
        # In one order, so that of two writers with the same runs neither holds what the other waits for.
        ordered = sorted(runs, key=lambda run: run.id)
        return self.database.transact(lambda: sum(self._add(run, (names or {}).get(run.id, "")) for run in ordered))

    def put(self, run: Run) -> None:
        """Write a run in the place of what was stored under its id, as for an explanation that was measured since."""
        self._keep(run, lambda store: store.database.transact(lambda: store._insert(run)))

    def put_training(self, run: TrainingRun, folder: Path) -> None:
        """Write a training as it is now, in the place of what was known of it before."""

        def work(store: Self) -> bool:
            held = store._rows("WHERE id = ?", run.id)
            older = held and not run.sweep  # its folder is of 0.1.0, which did not write there what it belongs to
            whole = msgspec.structs.replace(run, sweep=held[0].sweep, cell=held[0].cell) if older else run
            return store._insert(whole, folder)

        if self._notes is not None:
            self._notes.write_folder(run.id, folder)
        self._keep(run, lambda store: store.database.transact(lambda: work(store)))

    def advance(self, run: AnyRun) -> bool:
        """Write a run in the place of an earlier state of itself; False: what is stored is something else."""

        def work() -> bool:
            held = self._rows("WHERE id = ?", run.id)
            stored = self.load(held)
            return bool(stored) and continues(run, stored[0]) and self._insert(run, held[0].path, name=held[0].name)

        return self.database.transact(work)

    def delete(self, ids: Sequence[str]) -> int:
        statement = "DELETE FROM runs WHERE id = ?"
        deleted = self.database.transact(lambda: sum(self.database.write(statement, (one,)) for one in sorted(ids)))
        if self._notes is not None:
            self._notes.forget_folders(ids)
        return deleted

    def name(self, name: str, ids: Sequence[str], *, add: bool = False) -> None:
        """From now on the name stands for these runs or sweeps alone; with `add`, for these too."""
        if name.lower() in RESERVED:
            raise UsageError(f"{name!r} has a meaning of its own.", hint="Choose another name.")
        if not NAME.fullmatch(name):
            hint = "Take letters, digits, points, hyphens and underscores, 64 at most."
            raise UsageError(f"{name!r} can't be a name.", hint=hint)

        def work() -> None:
            if self.database.read("SELECT 1 FROM runs WHERE id = ? OR sweep = ? LIMIT 1", (name, name)):
                raise UsageError(f"{name!r} is the id of a run.", hint="Choose another name.")
            if not add:
                self.database.write("DELETE FROM names WHERE name = ?", (name,))
            statement = """INSERT INTO names VALUES (?, ?, ?)
                           ON CONFLICT (name, run) DO UPDATE SET given_at = excluded.given_at"""
            for one in ids:
                self.database.write(statement, (name, one, now_utc()))

        self.database.transact(work, alone=True)

    def unname(self, name: str) -> bool:
        statement = "DELETE FROM names WHERE name = ?"
        return self.database.transact(lambda: self.database.write(statement, (storable(name),)) > 0, alone=True)

    def _add(self, run: Run, name: str) -> bool:
        if self._insert(run, name=name, new=True):
            return True
        held = self._rows("WHERE id = ?", run.id)
        damaged: list[MetalmarkError] = []
        stored = self.load(held, on_error=damaged.append)
        # Of a training whose folder was gone when it was taken over there is only the row: here is the rest.
        # What is damaged is mended.
        if not held or damaged or self._rows("WHERE id = ? AND body IS NULL", run.id):
            return self._insert(run, held[0].path if held else None, name=name)
        if stored != [decode_as(encode(run), type(run), source=f"run {run.id}")]:
            raise StoreError(
                f"Run {run.id} is in the store already, with other contents.",
                hint="Nothing was imported. Two files claim the same run: one was edited.",
            )
        return False

    def _insert(self, run: Run, folder: Path | None = None, *, name: str = "", new: bool = False) -> bool:
        return schema.insert(self.database.write, run, folder, name=name, new=new, shared=self.database.shared)

    def _keep(self, run: Run, write: "Callable[[Store], object]") -> None:
        """Write a run that would otherwise be lost: where the server fails, to a store on this machine."""
        try:
            write(self)
        except ServerError as error:
            assert isinstance(self.address, ServerAddress)
            path = spool_file(self.address)
            try:
                with Store(path) as kept:
                    write(kept)
            except StoreError as also:
                raise StoreError(f"{error.message} {also.message}", hint=also.hint) from error
            spool.note(run.id, self.address, path, error)

    # Reading rows, which decodes no run

    def rows(self, *, limit: int | None = None, sweep: str | None = None) -> list[Row]:
        """Return the newest rows, the newest last."""
        where, values = ("WHERE sweep = ?", (storable(sweep),)) if sweep else ("", ())
        most = MOST_ROWS if limit is None else min(limit, MOST_ROWS)
        return self._rows(f"{where} ORDER BY started_at DESC, id DESC LIMIT ?", *values, most)[::-1]

    def count(self) -> int:
        return int(self.database.read("SELECT count(*) FROM runs")[0][0])

    def page(self, words: Sequence[str] = (), *, before: str = "", after: str = "", limit: int = 50) -> Page:
        """Return rows that hold every word in a column or a name. `before` and `after` are the id that the page begins
        next to."""
        conditions, values = [], []
        for word in words[:MOST_WORDS]:
            condition, found = self._holding(storable(word))
            conditions.append(condition)
            values += found
        sign, cursor = (">", after) if after else ("<", before)
        place = self._rows("WHERE id = ?", storable(cursor)) if cursor else []
        if place:
            conditions.append(f"(started_at, id) {sign} (?, ?)")
            values += [place[0].started_at, place[0].id]
        direction = "ASC" if after and place else "DESC"
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = self._rows(f"{where} ORDER BY started_at {direction}, id {direction} LIMIT ?", *values, limit + 1)
        more, rows = len(rows) > limit, rows[:limit]
        if direction == "ASC":
            return Page(rows=tuple(reversed(rows)), newer=more, older=True)
        return Page(rows=tuple(rows), newer=bool(place), older=more)

    def names(self) -> dict[str, list[str]]:
        """Return the names of each run and sweep that has some, by id."""
        names: dict[str, list[str]] = {}
        for name, run in self.database.read("SELECT name, run FROM names ORDER BY name, run"):
            names.setdefault(run, []).append(name)
        return names

    def rows_named(self, name: str) -> list[Row] | None:
        """Return the rows of a name or tag, which may all be deleted by now; None where nothing has that name."""
        named = "SELECT run FROM names WHERE name = ?"
        values = (storable(name),)
        known = self.database.read(f"{named} LIMIT 1", values)
        return self._rows(f"WHERE sweep IN ({named}) OR id IN ({named}) {_ORDER}", *values * 2) if known else None

    def rows_of_last(self) -> list[Row]:
        """Return the rows of what the newest command made: its sweep, or its one run."""
        newest = self._rows("ORDER BY started_at DESC, id DESC LIMIT 1")
        return self.rows_of_sweep(newest[0].sweep) if newest and newest[0].sweep else newest

    def rows_called(self, query: str) -> list[Row]:
        """Return the rows of a sweep, of an id, of a watched run's or a training folder's name, or of the only id that
        begins so."""
        query = storable(query)
        # The folder of several trainings names all of them: their names begin with its own and a stroke.
        exact = self._rows(
            f"WHERE sweep = ? OR id = ? OR name = ? OR (name > ? AND name < ? AND sweep <> '') {_ORDER}",
            *(query.lower(), query.lower(), query, f"{query}/", f"{query}0"),
        ) if query else []  # fmt: skip
        if exact:
            return exact
        beginning = self._rows("WHERE id >= ? AND id < ? LIMIT 2", *_range(query))
        if len(beginning) > 1:
            raise UsageError(f"Several runs begin with {query!r}.", hint="Give more of its characters.")
        return beginning

    def rows_of_sweep(self, sweep: str) -> list[Row]:
        return self._rows(f"WHERE sweep = ? {_ORDER}", sweep)

    def rows_of(self, ids: Sequence[str]) -> list[Row]:
        """Return the rows of these ids that are stored, in their order."""
        found = [row for part in _parts(ids) for row in self._rows(f"WHERE id IN ({_marks(part)})", *part)]
        rows = {row.id: row for row in found}
        return [rows[identifier] for identifier in ids if identifier in rows]

    def rows_of_cells(self, rows: Iterable[Row]) -> list[Row]:
        """Return every repeat of the cells that these rows belong to: a run is one process of its cell."""
        # One command may make runs of several kinds: explanations, and bench runs that verify them.
        cells = dict.fromkeys((row.sweep, row.cell, row.kind) if row.sweep else (row.id, -1, "") for row in rows)
        found = []
        for sweep, *cell in cells:
            alone = cell[0] == -1
            where, values = ("id = ?", (sweep,)) if alone else ("sweep = ? AND cell = ? AND kind = ?", (sweep, *cell))
            found += self._rows(f"WHERE {where} {_ORDER}", *values)
        return found

    # Reading runs

    def load(self, rows: Iterable[Row], *, on_error: Callable[[MetalmarkError], None] | None = None) -> list[AnyRun]:
        """Return the runs of these rows, in that order. One that is damaged, or whose folder is gone, raises; with
        `on_error` that is told, and the others are returned."""
        loaded: list[AnyRun] = []
        for part in _parts(list(rows)):
            ids = [row.id for row in part]
            bodies = dict(self.database.read(f"SELECT id, body FROM runs WHERE id IN ({_marks(ids)})", ids))
            for row in part:
                if row.id not in bodies:  # another process has deleted it meanwhile
                    continue
                try:
                    loaded.append(self._run(row, bodies[row.id]))
                except MetalmarkError as error:
                    if on_error is None:
                        raise
                    on_error(error)
        return loaded

    def of_workloads(
        self,
        names: Sequence[str],
        *,
        frameworks: Sequence[str] = (),
        on_error: Callable[[MetalmarkError], None] | None = None,
    ) -> list[AnyRun]:
        """Return the newest few bench runs of each framework, device and dtype: of these frameworks, or of all."""
        if not names:
            return []
        more = f" AND framework IN ({_marks(frameworks)})" if frameworks else ""
        where = _NEWEST.format(names=_marks(names), more=more)
        return self.load(self._rows(f"{where} {_ORDER}", *names, *frameworks), on_error=on_error)

    def checks(self, workload: str, framework: str) -> list[AnyRun]:
        """Return the newest parity checks of a workload on a framework; what can't be read is left out."""
        rows = self._rows(
            "WHERE kind = 'parity' AND workload = ? AND framework = ? ORDER BY started_at DESC, id DESC LIMIT ?",
            workload, framework, MOST_CHECKS,
        )  # fmt: skip
        return self.load(rows, on_error=lambda _: None)

    def sweep(self, query: str) -> Sweep:
        """Return a sweep by its id, by the beginning of it, or `last`."""
        where, values = ("", ()) if query == "last" else ("WHERE id >= ? AND id < ?", _range(query))
        found = self.database.read(f"SELECT id, body FROM sweeps {where} ORDER BY created_at DESC, id LIMIT 2", values)
        if not found:
            what = "There is no sweep yet" if query == "last" else f"There is no sweep {query!r}"
            raise UsageError(f"{what} in {self.address}.", hint=LIST_THEM)
        if query != "last" and len(found) > 1:
            raise UsageError(f"Several sweeps begin with {query!r}.", hint="Give more of its characters.")
        identifier, body = found[0]
        hint = f"Its runs are whole: metalmark runs show {identifier}. Measure what is missing with a new bench."
        sweep = read_json(body, Sweep, source=f"Sweep {identifier} of {self.address}", hint=hint)
        return sweep if self._notes is None else msgspec.structs.replace(sweep, paths=self._notes.paths(identifier))

    def _run(self, row: Row, body: bytes | None) -> AnyRun:
        # A training that runs, or whose command was killed, is further on in its folder than in the store.
        if body is None or row.ending in UNFINISHED:
            training = None
            if row.path is not None and os.path.isfile(row.path / RECORD):
                # Where the record of the folder is damaged, what the store has is older and better than nothing.
                with suppress(*() if body is None else (MetalmarkError,)):
                    training = read_training(row.path)
            if training is not None and training.id == row.id:  # else the folder holds another one
                return training
        if body is None:
            raise UsageError(
                f"The folder of training {row.id} is gone: {row.path}.",
                hint=f"Take it off the list: metalmark runs delete {row.id} --yes",
            )
        source = f"Run {row.id} of {self.address}"
        delete = f"The other runs are not affected. Delete it: metalmark runs delete {row.id} --yes"
        try:
            run = decode_as(body, type_of(row.kind, source=source), source=source)
        except FormatError as error:
            # What a newer Metalmark wrote is not damaged.
            raise FormatError(error.message, hint=delete if error.hint == SCHEMA_HINT else error.hint) from error
        why = damage_of(run) if run.id == row.id else f"it says that it is run {run.id}"
        if why:
            raise FormatError(f"{source} is damaged: {why}.", hint=delete)
        return run

    def _rows(self, rest: str, *values: object) -> list[Row]:
        found = self.database.read(f"SELECT {_COLUMNS} FROM runs {rest}", values)
        rows = [repaired(dict(zip(COLUMNS, each, strict=True))) for each in found]
        return rows if self._notes is None else [self._notes.with_folder(row) for row in rows]

    def _holding(self, word: str) -> tuple[str, list[str]]:
        pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        query = "SELECT DISTINCT run FROM names WHERE name LIKE ? ESCAPE '\\' LIMIT ?"
        named = [run for (run,) in self.database.read(query, (pattern, MOST_NAMED))]
        marks = _marks(named)
        by_name = f" OR id IN ({marks}) OR sweep IN ({marks})" if named else ""
        return f"({_TEXT} LIKE ? ESCAPE '\\'{by_name})", [pattern, *named, *named]


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split what one query asks for: a server is asked seldom, and memory holds the bodies of a few runs at a time."""
    return (values[start : start + MOST_ASKED] for start in range(0, len(values), MOST_ASKED))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _range(beginning: str) -> tuple[str, str]:
    """Return the range of ids that begin so, which an index serves; an empty one for what is in no id."""
    is_part = beginning.isalnum() and beginning.isascii()
    return (beginning.lower(), beginning.lower() + "~") if is_part else ("", "")
