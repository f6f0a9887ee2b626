"""The store: every kind of run goes in and comes out, and nothing that happens to the file loses one."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from metalmark.app.train import _keeper
from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.plan import Sweep
from metalmark.model.run import Failed, FailureKind, RunKind, new_id, now_utc
from metalmark.model.training import Ending, TrainingRun
from metalmark.runner.events import Ended
from metalmark.store import store as store_module
from metalmark.store.address import store_address
from metalmark.store.schema import VERSION
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from metalmark.training.folder import write_record
from tests.samples import completed, epoch, failed, plan, record, training_run, watched_run
from tests.store.killing import kill_after, run_at_once


def found(store: Store, query: str) -> list[AnyRun]:
    return load([select(query, store, files=False)], store)


def everything(store: Store) -> list[AnyRun]:
    return store.load(store.rows())


def keep(store: Store, run: TrainingRun, folder: Path) -> Path:
    """As `metalmark train` does: the run in its folder and in the store."""
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, run)
    store.put_training(run, folder)
    return folder


def test_what_goes_in_comes_out(store_file: Path) -> None:
    good, bad = record(completed(0.01)), record(failed(), cell=1)
    with Store(store_file) as store:
        store.add(good)
        store.add(bad)
    with Store(store_file, readonly=True) as store:
        assert found(store, good.id) == [good]
        assert found(store, bad.id[:6]) == [bad]
        assert found(store, "sweep00001") == [good, bad]
        assert found(store, "last") == [good, bad]
        assert {run.id for run in everything(store)} == {good.id, bad.id}
        rows = {row.id: row for row in store.rows()}
    assert rows[good.id].step_s == pytest.approx(0.01)
    assert rows[good.id].samples_s == pytest.approx(3200)
    assert rows[good.id].kind == RunKind.BENCH
    assert rows[bad.id].ending == FailureKind.OUT_OF_MEMORY.value


def test_every_kind_is_added_listed_found_named_and_deleted(store_file: Path) -> None:
    runs: list[AnyRun] = [
        record(id="bench00000", started_at="2026-11-15T08:00:01.000000Z"),
        training_run(id="training00", started_at="2026-11-15T08:00:02.000000Z"),
        watched_run(id="watched000", started_at="2026-11-15T08:00:03.000000Z"),
    ]
    with Store(store_file) as store:
        assert store.add_all(runs) == 3
        assert store.add_all(runs) == 0
        assert everything(store) == runs
        assert [row.kind for row in store.rows()] == ["bench", "training", "watch"]
        assert [row.id for row in store.page(["watch"]).rows] == ["watched000"]
        assert [row.id for row in store.page(["mnist-mlp"]).rows] == ["training00", "bench00000"]
        for run in runs:
            assert found(store, run.id) == [run]
            assert found(store, run.id[:6]) == [run]
            store.name("mine", [run.id], add=True)
        assert {run.id for run in found(store, "mine")} == {run.id for run in runs}
        for number, run in enumerate(runs):
            assert store.delete([run.id]) == 1
            assert everything(store) == runs[number + 1 :]


def test_what_the_list_says_of_a_training_and_of_a_watched_run(store_file: Path, tmp_path: Path) -> None:
    training = training_run(sweep="sweep00001", cell=2, repeat=1)
    watched = watched_run(started_at="2026-11-15T09:00:00.000000Z")
    with Store(store_file) as store:
        keep(store, training, tmp_path / "above" / "torch-cpu")
        store.add(watched)
        trained, looped = store.rows()
    assert (trained.sweep, trained.cell, trained.repeat) == ("sweep00001", 2, 1)
    assert (trained.name, trained.path) == ("above/torch-cpu", tmp_path / "above" / "torch-cpu")
    assert (trained.workload, trained.framework, trained.device, trained.mode) == (
        *("mnist-mlp", "torch", "cpu", "training"),
    )
    assert (trained.batch_size, trained.dtype, trained.ending) == (32, "float32", "all epochs done")
    assert (trained.epochs, trained.accuracy) == (2, 0.9)
    assert trained.samples_s == pytest.approx(180 / 10)
    assert (looped.name, looped.ending, looped.steps) == ("my loop", "completed", 10)
    assert looped.step_s == pytest.approx(0.1)
    assert looped.input_share == pytest.approx(0.25)
    assert (looped.workload, looped.batch_size, looped.epochs, looped.path) == ("", None, None, None)


def test_the_list_is_the_newest_last(store_file: Path) -> None:
    records = [record(started_at=f"2026-11-15T08:00:{n:02d}Z") for n in (3, 1, 2)]
    with Store(store_file) as store:
        store.add_all(records)
        assert [row.started_at[-3:-1] for row in store.rows()] == ["01", "02", "03"]
        assert [row.started_at[-3:-1] for row in store.rows(limit=2)] == ["02", "03"]
        assert store.count() == 3


def test_the_same_run_twice_is_one_and_another_under_its_id_is_refused(store_file: Path) -> None:
    for original in (record(), training_run(), watched_run()):
        with Store(store_file) as store:
            before = store.count()
            assert store.add_all([original, original]) == 1
            assert store.add_all([original]) == 0
            with pytest.raises(StoreError, match="other contents"):
                store.add_all([record(), msgspec.structs.replace(original, started_at="2026-11-16T08:00:00Z")])
            with pytest.raises(StoreError, match="other contents"):
                store.add_all([record(), record(id=original.id, cell=7)])
            assert store.count() == before + 1, "all or nothing: the good one of the pair is not there either"
            assert found(store, original.id) == [original]


def test_a_figure_that_is_not_finite_does_not_make_a_run_another_one(store_file: Path) -> None:
    """JSON has no NaN: what is read back has None in its place."""
    curve = msgspec.structs.replace(watched_run().curves[0], values=(2.3, float("nan")))
    run = watched_run(curves=(curve,))
    with Store(store_file) as store:
        assert store.add_all([run]) == 1
        assert store.add_all([run]) == 0


def test_deleting(store_file: Path) -> None:
    first, second = record(), record()
    with Store(store_file) as store:
        store.add_all([first, second])
        assert store.delete([first.id, "0000000000"]) == 1
        assert everything(store) == [second]
        rows = store.rows()
        store.delete([second.id])
        assert store.load(rows) == [], "deleted by another process between its row and its body"


# Trainings


def test_what_is_known_of_a_training_is_replaced(store_file: Path, tmp_path: Path) -> None:
    first = training_run(ending=Ending.RUNNING, sessions=(), epochs=())
    with Store(store_file) as store:
        folder = keep(store, first, tmp_path / "run1")
        assert [row.ending for row in store.rows()] == ["not begun"]
        store.name("main", [first.id])
        why = Failed(kind=FailureKind.OUT_OF_MEMORY, message="no room")
        keep(store, msgspec.structs.replace(first, ending=Ending.FAILED, failure=why), folder)
        assert [row.ending for row in store.rows()] == ["out of memory"]
        assert store.names() == {first.id: ["main"]}


def test_a_training_that_runs_is_read_from_its_folder_and_one_that_ended_from_the_store(
    store_file: Path, tmp_path: Path
) -> None:
    begun = training_run(ending=Ending.RUNNING, epochs=())
    further = msgspec.structs.replace(begun, epochs=(epoch(1),))
    ended = training_run(ending=Ending.EPOCHS)
    with Store(store_file) as store:
        running = keep(store, begun, tmp_path / "running")
        write_record(running, further)  # the command was killed before it told the store
        finished = keep(store, ended, tmp_path / "finished")
        write_record(finished, msgspec.structs.replace(ended, epochs=()))
        assert found(store, begun.id) == [further]
        assert found(store, ended.id) == [ended]
        for folder in (running, finished):
            (folder / "record.json").unlink()
            folder.rmdir()
        assert found(store, begun.id) == [begun]
        assert found(store, ended.id) == [ended], "a folder that is gone costs no figure"


def test_a_folder_that_holds_another_training_since_is_not_read(store_file: Path, tmp_path: Path) -> None:
    begun = training_run(ending=Ending.RUNNING)
    with Store(store_file) as store:
        folder = keep(store, begun, tmp_path / "run1")
        write_record(folder, training_run(ending=Ending.RUNNING))
        assert found(store, begun.id) == [begun]


def test_a_store_that_fails_costs_no_training(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite3"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    said: list[str] = []
    hear = _keeper(foreign, tmp_path, said.append)
    hear(Ended(run=training_run()))
    assert len(said) == 1
    assert "another program" in said[0]
    with pytest.raises(StoreError):
        Store(foreign)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_folders_name_that_is_not_text_is_listed_and_its_folder_found(store_file: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"this file system wants text: {error}")
    run = training_run(ending=Ending.RUNNING)
    with Store(store_file) as store:
        keep(store, run, folder)
        (row,) = store.rows()
        assert row.name == "caf\\xe9"
        assert row.path == folder
        write_record(folder, further := msgspec.structs.replace(run, epochs=()))
        assert store.load([row]) == [further]
        assert found(store, folder.name) == [further]


def test_one_run_that_can_not_be_read_costs_that_run_alone(store_file: Path) -> None:
    good, damaged, other = record(), watched_run(), record(id="newerkind0")
    with Store(store_file) as store:
        store.add_all([good, damaged, other])
        store.database.connection.execute("UPDATE runs SET body = ? WHERE id = ?", (b'{"schema":2,"\xff', damaged.id))
        store.database.connection.execute("UPDATE runs SET kind = 'dream' WHERE id = ?", (other.id,))
        assert store.count() == len(store.rows()) == len(store.page().rows) == 3
        assert found(store, good.id) == [good]
        with pytest.raises(FormatError, match=f"Run {damaged.id} of .*is not a Metalmark run"):
            found(store, damaged.id)
        with pytest.raises(FormatError, match="kind 'dream', which this Metalmark does not know"):
            found(store, other.id)
        errors: list[MetalmarkError] = []
        assert store.load(store.rows(), on_error=errors.append) == [good]
        assert len(errors) == 2
        with pytest.raises(FormatError):
            everything(store)


# Names


def test_a_name_moves_and_a_tag_gathers(store_file: Path) -> None:
    first, second = record(sweep="aaaaaaaaaa"), record(sweep="bbbbbbbbbb")
    with Store(store_file) as store:
        store.add_all([first, second])
        store.name("main", ["aaaaaaaaaa"])
        assert found(store, "main") == [first]
        store.name("main", [second.id])
        assert found(store, "main") == [second]
        store.name("laptop", ["aaaaaaaaaa"], add=True)
        store.name("laptop", ["bbbbbbbbbb"], add=True)
        store.name("laptop", ["bbbbbbbbbb"], add=True)
        assert found(store, "laptop") == [first, second]
    with Store(store_file, readonly=True) as store:
        assert store.names() == {second.id: ["main"], "aaaaaaaaaa": ["laptop"], "bbbbbbbbbb": ["laptop"]}


def test_a_named_sweep_grows_with_what_is_added_to_it(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record(sweep="aaaaaaaaaa"))
        store.name("main", ["aaaaaaaaaa"])
        store.add(record(sweep="aaaaaaaaaa", repeat=1))
        assert len(found(store, "main")) == 2


def test_a_name_can_be_taken_away(store_file: Path) -> None:
    kept = record()
    with Store(store_file) as store:
        store.add(kept)
        assert not store.unname("main")
        store.name("main", [kept.id])
    with Store(store_file) as store:
        assert found(store, "main") == [kept]
        assert store.unname("main")
        assert store.names() == {}
        assert everything(store) == [kept]


@pytest.mark.parametrize("word", ["last", "published", "", "a b", "x/y", "-x", "<script>", "é", "a" * 65, "'; DROP--"])
def test_what_can_not_be_a_name(store_file: Path, word: str) -> None:
    with Store(store_file) as store:
        store.add(record())
        with pytest.raises(UsageError):
            store.name(word, ["sweep00001"])
        assert store.names() == {}


def test_an_id_can_not_be_a_name(store_file: Path) -> None:
    kept, watched = record(), watched_run()
    with Store(store_file) as store:
        store.add_all([kept, watched])
        for word in (kept.id, kept.sweep, watched.id):
            with pytest.raises(UsageError, match="id of a run"):
                store.name(word, [kept.id])
        assert found(store, kept.id) == [kept]


NAMING = """
import sys
from pathlib import Path
from metalmark.store.store import Store
with Store(Path(sys.argv[1])) as store:
    for number in range(100_000):
        store.name("main", [f"run{number}", f"twin{number}"])
        print(number, flush=True)
"""


def test_kill_minus_nine_leaves_the_old_name_or_the_new_one(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record())
    said = kill_after(NAMING, store_file)
    with Store(store_file) as store:
        named = [run for run, names in store.names().items() if names == ["main"]]
        assert store.count() == 1
    assert len(named) == 2, "both of one writing, never a half"
    number = int(next(run for run in named if run.startswith("run")).removeprefix("run"))
    assert f"twin{number}" in named
    assert number >= said


# Sweeps


def test_sweeps_are_found_by_their_beginning(store_file: Path) -> None:
    sweep = Sweep(id=new_id(), created_at=now_utc(), plans=(plan(),), paths={"my.py:x": "somewhere"})
    with Store(store_file) as store:
        with pytest.raises(UsageError, match="no sweep yet"):
            store.sweep("last")
        store.add_sweep(sweep)
        assert store.sweep("last") == store.sweep(sweep.id[:5]) == sweep
        for word in ("zzzzzz", "%", "' OR 1=1 --", "", "é", "\ud800"):
            with pytest.raises(UsageError):
                store.sweep(word)


def test_a_sweep_that_is_damaged_is_named(store_file: Path) -> None:
    with Store(store_file) as store:
        store.database.connection.execute("INSERT INTO sweeps VALUES ('aaaaaaaaaa', '2026', ?)", (b'{"id": "\xff"',))
        with pytest.raises(FormatError, match=r"Sweep aaaaaaaaaa of .* is damaged"):
            store.sweep("last")


# The file


def test_reading_a_store_that_is_not_there_makes_none(store_file: Path) -> None:
    with Store(store_file, readonly=True) as store:
        assert store.rows() == []
    assert not store_file.exists()


def test_a_locked_store(store_file: Path) -> None:
    with Store(store_file, wait_s=0.1) as store:
        other = sqlite3.connect(store_file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked") as caught:
            store.add(record())
        assert "--store" in caught.value.hint
        assert store.rows() == [], "reading goes on beside a writer"
        other.execute("ROLLBACK")
        other.close()
        store.add(record())
        assert store.count() == 1


@pytest.mark.parametrize(
    "content", [b"not a database at all, just text", b"SQLite format 3\x00" + b"\xff" * 4096, os.urandom(5000)]
)
def test_a_corrupt_store_is_left_as_it_is(store_file: Path, content: bytes) -> None:
    store_file.write_bytes(content)
    for readonly in (True, False):
        with pytest.raises(StoreError, match="can't be used") as caught:
            Store(store_file, readonly=readonly)
        assert "left as it is" in caught.value.hint
    assert store_file.read_bytes() == content


def test_a_page_of_rubbish_in_the_middle(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([record() for _ in range(50)])
    data = bytearray(store_file.read_bytes())
    data[4096 : 4096 * 6] = b"\xee" * (4096 * 5)
    store_file.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"), Store(store_file, readonly=True) as store:
        everything(store)


def test_another_programs_database_is_not_touched(store_file: Path) -> None:
    with sqlite3.connect(store_file) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = store_file.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(store_file)
    assert store_file.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "hint"), [(VERSION + 1, "newer"), (99, "newer"), (0, "as it is"), (-3, "as it is")]
)
def test_a_store_of_a_version_that_is_not_known_is_refused(store_file: Path, version: int, hint: str) -> None:
    with Store(store_file):
        pass
    with sqlite3.connect(store_file) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()
    for readonly in (True, False):
        with pytest.raises(StoreError, match=f"version {version}") as caught:
            Store(store_file, readonly=readonly)
        assert hint in caught.value.hint
    with sqlite3.connect(store_file) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (version,)
    other.close()


OPENED = """
import sys
from pathlib import Path
from metalmark.store.store import Store
from tests.samples import record
run = record()
print("ready", flush=True)
sys.stdin.readline()
with Store(Path(sys.argv[1])) as store:
    store.add(run)
"""


def test_several_processes_make_the_same_store_at_once(store_file: Path) -> None:
    run_at_once(OPENED, store_file, number=4)
    with Store(store_file, readonly=True) as store:
        assert store.count() == 4


def test_a_full_disk_loses_nothing_that_was_stored(store_file: Path) -> None:
    kept = record()
    with Store(store_file) as store:
        store.add(kept)
        pages = store.database.connection.execute("PRAGMA page_count").fetchone()[0]
        store.database.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full") as caught:
            store.add_all([record(completed(blocks=2000)) for _ in range(5)])
        assert "safe" in caught.value.hint
        assert everything(store) == [kept]


def test_a_commit_is_on_the_drive(store_file: Path) -> None:
    """On macOS as well, where that takes more than fsync; a new store and one that is opened again."""
    for _ in range(2):
        with Store(store_file) as store:
            store.add(record())
            settings = ("synchronous", "fullfsync", "checkpoint_fullfsync")
            found = [store.database.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
            assert found == [2, 1, 1]


def test_without_a_home_folder_the_store_needs_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As for a user whom the system does not know, in a container or a service."""
    for name in ("METALMARK_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(StoreError, match="no place for the store: this user's home folder is not known") as caught:
        store_address()
    assert "METALMARK_STORE" in caught.value.hint
    with pytest.raises(StoreError, match=r"The store ~/store\.sqlite3 can't be found"):
        store_address("~/store.sqlite3")
    assert store_address(str(tmp_path / "s.sqlite3")) == tmp_path / "s.sqlite3"


READ_ONLY = """
import os, sys
import urllib.parse  # Path.as_uri imports it late, when it can't be read any more
from pathlib import Path
from metalmark.errors import StoreError
from metalmark.store.store import Store
import metalmark.model.codec
path = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
with Store(path, readonly=True) as store:
    assert store.count() == 1, store.count()
    assert len(store.load(store.rows())) == 1
try:
    Store(path)
except StoreError as error:
    print(error.message)
"""


def test_a_read_only_store_can_be_read_and_not_written(open_folder: Path) -> None:
    store_file = open_folder / "store.sqlite3"
    with Store(store_file) as store:
        store.add(record())
    store_file.chmod(0o444)
    open_folder.chmod(0o555)
    run = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(store_file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "read-only" in run.stdout


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store(tmp_path)


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for readonly in (True, False):
        with pytest.raises(StoreError, match="can't be used: File name too long"):
            Store(tmp_path / ("a" * 5000), readonly=readonly)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "file" / "store.sqlite3")


KILLED = """
import os, sys
from pathlib import Path
from metalmark.store.store import Store
from tests.samples import record
with Store(Path(sys.argv[1])) as store:
    for number in range(1000):
        store.add(record(cell=number))
        print(number, flush=True)
"""


def test_kill_minus_nine_loses_nothing_that_was_committed(store_file: Path) -> None:
    said = kill_after(KILLED, store_file)
    with Store(store_file) as store:
        cells = sorted(row.cell for row in store.rows())
        assert len(everything(store)) == len(cells)
    assert cells == list(range(len(cells)))
    assert len(cells) > said


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "a"))
    assert store_address() == tmp_path / "a"
    assert store_address(str(tmp_path / "b")) == tmp_path / "b"
    monkeypatch.delenv("METALMARK_STORE")
    assert store_address().name == "records.sqlite3"


def test_placeholders_have_no_numbers() -> None:
    """Python 3.12 warns of numbered ones beside a sequence of values, 3.14 refuses them; 3.11 says nothing."""
    found = [
        path.name for path in Path(store_module.__file__).parent.glob("*.py") if re.search(r"\?\d", path.read_text())
    ]
    assert found == []
