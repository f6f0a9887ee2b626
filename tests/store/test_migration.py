"""A store of the version before becomes one of this version: whole or not at all, and nothing in it is lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.errors import FormatError, StoreError, UsageError
from metalmark.model.codec import decode_export, encode
from metalmark.model.training import Ending, TrainingRun
from metalmark.store import schema
from metalmark.store.bundle import read_file
from metalmark.store.schema import VERSION
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from metalmark.training.folder import read_record, write_record
from tests.processes import ROOT
from tests.samples import training_run, watched_run
from tests.store.killing import run_at_once

OLD = ROOT / "tests" / "fixtures" / "0.1.0"
BENCH = ["ezo2nelt7c", "qma7et4d54", "akef9geron", "9kk5csh0ff", "j2rdjfkjdf", "lue44bwpnj", "ij4bc8ehxp"]
TRAINING, WATCHED = "hl17wq91lf", "xxczhnfb28"
TABLES = {"records", "sweeps", "names", "trainings", "watched"}


@pytest.fixture
def old_store(store_file: Path) -> Path:
    """A copy, whose one training has a folder that is not there."""
    shutil.copy(OLD / "store.db", store_file)
    ask(store_file, "UPDATE trainings SET folder = ?", os.fsencode(store_file.parent / "gone" / "run1"))
    return store_file


def ask(store_file: Path, query: str, *values: object) -> list[Any]:
    """Read, or change, the file as SQLite does, without a Store."""
    connection = sqlite3.connect(store_file)
    with connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


def tables(store_file: Path) -> set[str]:
    return {name for (name,) in ask(store_file, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def version(store_file: Path) -> int:
    return int(ask(store_file, "PRAGMA user_version")[0][0])


def old_training(store_file: Path, run: TrainingRun, folder: Path, lineup: str = "", *, writes: bool = True) -> None:
    """A training as 0.1.0 left it: its folder, and a row that points there."""
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        document = json.loads(encode(run))
        for name in ("kind", "sweep", "cell", "repeat"):
            del document[name]
        (folder / "record.json").write_text(json.dumps({**document, "schema": 1}))
    name = f"{folder.parent.name}/{folder.name}" if lineup else folder.name
    row = (run.id, lineup, name, run.started_at, "mnist-mlp", "torch", "cpu", 32, "float32", "running", 1, 0.5, 9.0)
    ask(store_file, f"INSERT INTO trainings VALUES ({', '.join('?' * 14)})", *row, os.fsencode(folder))


def test_every_row_name_and_sweep_is_kept(old_store: Path) -> None:
    columns = "id, sweep, cell, repeat, started_at, workload, framework, device, mode, batch_size, dtype, {}, step_s"
    rows = ask(old_store, f"SELECT {columns.format('outcome')}, samples_s, body FROM records ORDER BY id")
    names, sweeps = (ask(old_store, f"SELECT * FROM {table} ORDER BY 1") for table in ("names", "sweeps"))
    training = ask(old_store, "SELECT name, started_at, outcome, epochs, accuracy, samples_s, folder FROM trainings")
    with Store(old_store) as store:
        assert store.count() == 9
        assert {row.id for row in store.rows()} == {*BENCH, TRAINING, WATCHED}
        assert store.names() == {"6dt8ihfq5q": ["fixture", "main"]}
        assert [plan.framework for plan in store.sweep("aqrspaserw").plans] == ["jax"]
        assert store.sweep("last").id == "aqrspaserw"
        (watched,) = load([select("a loop of my own", store)], store)
    new_bench = f"SELECT {columns.format('ending')}, samples_s, body FROM runs WHERE kind = 'bench' ORDER BY id"
    assert ask(old_store, new_bench) == rows
    assert ask(old_store, "SELECT * FROM names ORDER BY 1") == names
    assert ask(old_store, "SELECT * FROM sweeps ORDER BY 1") == sweeps
    trained = "SELECT name, started_at, ending, epochs, accuracy, samples_s, folder FROM runs WHERE kind = 'training'"
    assert ask(old_store, trained) == training
    assert watched.id == WATCHED
    assert tables(old_store) == {"runs", "names", "sweeps"}
    assert version(old_store) == VERSION


def test_an_old_store_is_then_as_a_new_one_is(old_store: Path, tmp_path: Path) -> None:
    with Store(old_store), Store(tmp_path / "new.sqlite3"):
        pass
    query = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert ask(old_store, query) == ask(tmp_path / "new.sqlite3", query)
    assert ask(old_store, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert ask(old_store, "PRAGMA integrity_check") == [("ok",)]


def test_its_runs_are_those_of_its_export_and_its_bundle(old_store: Path) -> None:
    """Bodies of the first schema, compared with the same runs read again: none is added, and none is refused."""
    exported = decode_export((OLD / "export.json").read_bytes(), source="export")
    bundled = read_file(str(OLD / "runs.bundle")).runs
    with Store(old_store) as store:
        assert load([select(one, store) for one in BENCH], store) == exported
        assert store.add_all(exported) == 0
        assert store.add_all(bundled) == 0
        assert store.count() == 9
        edited = msgspec.structs.replace(exported[0], cell=99)
        with pytest.raises(StoreError, match="other contents"):
            store.add_all([edited])


def test_runs_added_later_stand_beside_those_of_the_version_before(old_store: Path) -> None:
    run = training_run(started_at="2027-01-01T00:00:00Z")
    with Store(old_store) as store:
        store.add(run)
        assert load([select("last", store)], store) == [run]
        assert store.count() == 10


# Trainings


def test_a_training_whose_folder_is_there_becomes_part_of_the_store(old_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved here"
    shutil.copytree(OLD / "training", folder)
    ask(old_store, "UPDATE trainings SET folder = ?, name = ?", os.fsencode(folder), folder.name)
    expected = read_record(folder)
    with Store(old_store) as store:
        shutil.rmtree(folder)
        (row,) = select("moved here", store).rows
        assert (row.id, row.ending, row.epochs, row.accuracy) == (TRAINING, "all epochs done", 2, 0.171)
        assert (row.path, row.sweep, row.cell) == (folder, "", 0)
        assert store.load([row]) == [expected]
        assert store.add_all([expected]) == 0


def test_a_training_whose_folder_is_gone_says_so_and_is_still_listed(old_store: Path) -> None:
    with Store(old_store) as store:
        (row,) = select("run1", store).rows
        with pytest.raises(UsageError, match=rf"The folder of training {TRAINING} is gone: .*run1") as caught:
            store.load([row])
        assert f"runs delete {TRAINING}" in caught.value.hint
        errors: list[Exception] = []
        assert len(store.load(store.rows(), on_error=errors.append)) == 8
        assert len(errors) == 1
        assert store.delete([TRAINING]) == 1
        assert store.count() == 8


def test_a_folder_that_comes_back_is_read(old_store: Path, tmp_path: Path) -> None:
    """One on a drive that was not there on the day of the migration."""
    folder = tmp_path / "drive" / "run1"
    ask(old_store, "UPDATE trainings SET folder = ?", os.fsencode(folder))
    with Store(old_store) as store:
        with pytest.raises(UsageError, match="is gone"):
            load([select(TRAINING, store)], store)
        shutil.copytree(OLD / "training", folder)
        assert load([select(TRAINING, store)], store) == [read_record(folder)]


def test_the_run_of_a_folder_that_is_gone_can_be_imported(old_store: Path) -> None:
    run = read_record(OLD / "training")
    with Store(old_store) as store:
        assert store.add_all([run]) == 1
        assert store.add_all([run]) == 0
        assert load([select("run1", store)], store) == [run]
        assert store.count() == 9


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"schema": 99}', b'{"id": "\xff"}', b'{"a":' + b"[" * 100_000, b'{"schema": 1, "id": ']
)
def test_a_damaged_folder_costs_that_training_alone(old_store: Path, tmp_path: Path, content: bytes) -> None:
    good, bad = training_run(), training_run()
    old_training(old_store, good, tmp_path / "good")
    old_training(old_store, bad, tmp_path / "bad")
    (tmp_path / "bad" / "record.json").write_bytes(content)
    with Store(old_store) as store:
        assert store.count() == 11
        assert load([select(good.id, store)], store) == [good]
        with pytest.raises(FormatError, match=r"bad.record\.json"):
            load([select(bad.id, store)], store)


def test_a_folder_that_holds_another_training_since(old_store: Path, tmp_path: Path) -> None:
    first, second = training_run(), training_run()
    old_training(old_store, first, tmp_path / "run9")
    old_training(old_store, second, tmp_path / "run9")
    with Store(old_store) as store:
        assert load([select(second.id, store)], store) == [second]
        with pytest.raises(UsageError, match="is gone"):
            load([select(first.id, store)], store)


def test_trainings_side_by_side_are_cells_of_a_sweep(old_store: Path, tmp_path: Path) -> None:
    """What 0.1.0 called a line-up: only the folder above, and the store, said that they belong together."""
    members = [training_run(id=f"member000{n}", started_at=f"2026-11-16T10:00:0{n}Z") for n in range(3)]
    above = tmp_path / "devices"
    for number, run in enumerate(members):
        old_training(old_store, run, above / f"torch-{number}", "lineup0001", writes=number < 2)
    lineup = {"schema": 1, "id": "lineup0001", "created_at": "", "members": ["torch-0", "torch-1", "torch-2"]}
    (above / "lineup.json").write_text(json.dumps(lineup))
    lone = training_run(id="lone000000")
    old_training(old_store, lone, tmp_path / "lineup of none", "lineup0002")
    with Store(old_store) as store:
        selection = select("lineup0001", store)
        assert selection.sweep == "lineup0001"
        assert [(row.id, row.cell, row.name) for row in selection.rows] == [
            (run.id, number, f"devices/torch-{number}") for number, run in enumerate(members)
        ]
        assert [row.id for row in store.rows_of_cells(selection.rows[1:2])] == ["member0001"]
        loaded = store.load(selection.rows[:2])
        assert loaded == [
            msgspec.structs.replace(run, sweep="lineup0001", cell=number) for number, run in enumerate(members[:2])
        ]
        assert load([select(str(above / "torch-1"), store)], store) == loaded[1:], "its folder says the same"
        resumed = msgspec.structs.replace(members[1], ending=Ending.INTERRUPTED)
        store.put_training(resumed, above / "torch-1")
        assert [row.id for row in select("lineup0001", store).rows] == [run.id for run in members]
        (row,) = select(lone.id, store).rows
        assert (row.sweep, row.cell) == ("lineup0002", 0)
        assert load([select(lone.id, store)], store)[0].header.sweep == "lineup0002"


def test_a_training_that_runs_meanwhile_is_read_from_its_folder(old_store: Path, tmp_path: Path) -> None:
    running = training_run(ending=Ending.RUNNING, epochs=())
    old_training(old_store, running, tmp_path / "now")
    further = msgspec.structs.replace(running, epochs=training_run().epochs)
    with Store(old_store) as store:
        write_record(tmp_path / "now", further)
        assert load([select("now", store)], store) == [further]


# Watched runs


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b'{"schema": 99}',
        b'{"name": "\xff"}',
        b'{"schema": 1, "name": ' + b"[" * 100_000,
        encode(watched_run()).replace(b'"steps":10', b'"steps":1' + b"0" * 400),
    ],
    ids=range(6),
)
def test_a_damaged_watched_run_costs_that_run_alone(old_store: Path, body: bytes) -> None:
    row = ("damaged000", "other loop", "2026-11-16T11:00:00Z", "completed", body)
    ask(old_store, "INSERT INTO watched VALUES (?, ?, ?, ?, ?)", *row)
    with Store(old_store) as store:
        assert store.count() == 10
        (found,) = select("other loop", store).rows
        assert (found.id, found.ending, found.started_at) == ("damaged000", "damaged", "2026-11-16T11:00:00Z")
        if b"0" * 400 not in body:  # JSON as it should be, with a number that no column takes
            with pytest.raises(FormatError, match="Run damaged000"):
                store.load([found])
        assert load([select(WATCHED, store)], store)
    assert ask(old_store, "SELECT body FROM runs WHERE id = 'damaged000'") == [(body,)], "kept for whoever repairs it"


# What happens meanwhile

KILLED = """
import sys
from pathlib import Path
from metalmark.store import schema
from metalmark.store.store import Store
stage = sys.argv[2]

def stop(*arguments, **more):
    print("in the middle", flush=True)
    sys.stdin.read()  # until it is killed

if stage == "trainings":
    schema._take_over_trainings = stop
elif stage == "watched":
    schema.decode_as = stop
else:
    class Waits(dict):
        def __getitem__(self, number):
            def migrate(connection):
                schema._one_table_for_every_kind(connection)
                stop()
            return migrate
    schema.MIGRATIONS = Waits()
Store(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("stage", ["trainings", "watched", "the end"])
def test_kill_minus_nine_in_the_middle_leaves_the_old_store_whole(old_store: Path, stage: str) -> None:
    count = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM trainings), (SELECT count(*) FROM watched)"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(old_store), stage],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as migrating:  # fmt: skip
        assert migrating.stdout is not None
        assert migrating.stdout.readline() == "in the middle\n"
        assert ask(old_store, count) == [(7, 1, 1)], "others read the old store until it has become the new one"
        migrating.kill()
    assert tables(old_store) == TABLES
    assert version(old_store) == 1
    assert ask(old_store, count) == [(7, 1, 1)]
    with Store(old_store) as store:
        assert store.count() == 9
        assert store.names() == {"6dt8ihfq5q": ["fixture", "main"]}


def test_a_full_disk_leaves_the_old_store_whole(old_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 5}")
        schema._one_table_for_every_kind(connection)

    with monkeypatch.context() as patched:
        patched.setitem(schema.MIGRATIONS, 1, fill_disk)
        with pytest.raises(StoreError, match="disk is full"):
            Store(old_store)
    assert tables(old_store) == TABLES
    assert version(old_store) == 1
    with Store(old_store) as store:
        assert store.count() == 9


def test_a_store_that_misses_a_table_is_left_as_it_is(old_store: Path) -> None:
    ask(old_store, "DROP TABLE records")
    before = old_store.read_bytes()
    with pytest.raises(StoreError, match="other tables") as caught:
        Store(old_store)
    assert "left as it is" in caught.value.hint
    assert old_store.read_bytes() == before


def test_a_store_from_before_names_trainings_and_watched_runs(old_store: Path) -> None:
    """0.1.0 made these tables with their first row."""
    for table in ("names", "trainings", "watched"):
        ask(old_store, f"DROP TABLE {table}")
    ask(old_store, "DROP INDEX records_in_list")
    with Store(old_store, readonly=True) as store:
        assert {row.id for row in store.rows()} == set(BENCH)
        assert store.names() == {}


OPENED = """
import sys
from pathlib import Path
from metalmark.store.store import Store
print("ready", flush=True)
sys.stdin.readline()
with Store(Path(sys.argv[1]), readonly=True) as store:
    print(store.count(), len(store.names()))
"""


def test_processes_that_open_an_old_store_at_once_bring_it_up_to_date_once(old_store: Path) -> None:
    assert run_at_once(OPENED, old_store, number=4) == ["9 1\n"] * 4
    assert tables(old_store) == {"runs", "names", "sweeps"}


def test_a_store_that_another_process_holds_is_not_touched(old_store: Path) -> None:
    other = sqlite3.connect(old_store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"locked for 0\.1 s"):
        Store(old_store, wait_s=0.1)
    other.execute("ROLLBACK")
    other.close()
    with Store(old_store) as store:
        assert store.count() == 9


READ_ONLY = """
import os, sys
import urllib.parse  # Path.as_uri imports it late, when it can't be read any more
from pathlib import Path
from metalmark.errors import StoreError
from metalmark.store.selection import load, select
from metalmark.store.store import Store
import metalmark.training.folder, metalmark.training.lineup, metalmark.training.derived
path = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
with Store(path, readonly=True) as store:
    print(store.count(), len(load([select("main", store)], store)), *store.names())
try:
    Store(path)
except StoreError as error:
    print(error.message)
"""


def test_an_old_store_in_a_read_only_folder_is_read_and_left_as_it_is(open_folder: Path) -> None:
    path = open_folder / "store.sqlite3"
    shutil.copy(OLD / "store.db", path)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    run = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counted, refused = run.stdout.splitlines()
    assert counted == "9 6 6dt8ihfq5q"
    assert "read-only" in refused
    assert path.read_bytes() == (OLD / "store.db").read_bytes()
    assert [one.name for one in open_folder.iterdir()] == ["store.sqlite3"]


def test_every_older_version_has_a_migration() -> None:
    assert set(schema.MIGRATIONS) == set(range(1, VERSION))
