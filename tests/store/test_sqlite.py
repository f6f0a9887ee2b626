from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from metalmark.errors import StoreError, UsageError
from metalmark.model.run import FailureKind
from metalmark.model.sweep import Sweep, new_id, now_utc
from metalmark.store import sqlite
from metalmark.store.place import store_path
from metalmark.store.sqlite import LAYOUT, Store
from tests.samples import completed, failed, plan, record
from tests.store.killing import kill_after


def test_what_goes_in_comes_out(store_file: Path) -> None:
    good, bad = record(completed(0.01)), record(failed(), cell=1)
    with Store(store_file) as store:
        store.add(good)
        store.add(bad)
    with Store(store_file, readonly=True) as store:
        assert store.find([good.id]) == [good]
        assert store.find([bad.id[:6]]) == [bad]
        assert store.find(["sweep00001"]) == [good, bad]
        assert store.find(["last"]) == [good, bad]
        assert store.find([]) == [good, bad]
        rows = {row.id: row for row in store.rows()}
    assert rows[good.id].step_s == pytest.approx(0.01)
    assert rows[good.id].samples_s == pytest.approx(3200)
    assert rows[bad.id].outcome == FailureKind.OUT_OF_MEMORY.value


def test_the_list_is_the_newest_last(store_file: Path) -> None:
    records = [record(started_at=f"2026-11-15T08:00:{n:02d}Z") for n in (3, 1, 2)]
    with Store(store_file) as store:
        store.add_all(records)
        assert [row.started_at[-3:-1] for row in store.rows()] == ["01", "02", "03"]
        assert [row.started_at[-3:-1] for row in store.rows(limit=2)] == ["02", "03"]
        assert store.count() == 3


def test_the_same_record_twice_is_one_and_another_under_its_id_is_refused(store_file: Path) -> None:
    original = record()
    with Store(store_file) as store:
        assert store.add_all([original, original]) == 1
        assert store.add_all([original]) == 0
        with pytest.raises(StoreError, match="other contents"):
            store.add_all([record(), msgspec.structs.replace(original, cell=7)])
        assert store.find([]) == [original], "all or nothing: the good one of the pair is not there either"


def test_deleting(store_file: Path) -> None:
    first, second = record(), record()
    with Store(store_file) as store:
        store.add_all([first, second])
        assert store.delete([first.id, "0000000000"]) == 1
        assert store.find([]) == [second]


def test_sweeps_are_found_by_their_beginning(store_file: Path) -> None:
    sweep = Sweep(id=new_id(), created_at=now_utc(), plans=(plan(),), paths={"my.py:x": "somewhere"})
    with Store(store_file) as store:
        with pytest.raises(UsageError, match="no sweep yet"):
            store.sweep("last")
        store.add_sweep(sweep)
        assert store.sweep("last") == store.sweep(sweep.id[:5]) == sweep
        for word in ("zzzzzz", "%", "' OR 1=1 --"):
            with pytest.raises(UsageError):
                store.sweep(word)


def test_an_id_is_not_a_pattern(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record())
        for word in ("%", "_", "", "*", "ö"):
            with pytest.raises(UsageError):
                store.find([word])


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
        store.find([])


def test_another_programs_database_is_not_touched(store_file: Path) -> None:
    with sqlite3.connect(store_file) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = store_file.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(store_file)
    assert store_file.read_bytes() == before


def test_a_store_from_the_future_is_refused(store_file: Path) -> None:
    with Store(store_file):
        pass
    with sqlite3.connect(store_file) as later:
        later.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    later.close()
    with pytest.raises(StoreError, match=f"layout {LAYOUT + 1}") as caught:
        Store(store_file)
    assert "newer" in caught.value.hint


def test_a_full_disk_loses_nothing_that_was_stored(store_file: Path) -> None:
    kept = record()
    with Store(store_file) as store:
        store.add(kept)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full") as caught:
            store.add_all([record(completed(blocks=2000)) for _ in range(5)])
        assert "safe" in caught.value.hint
        assert store.find([]) == [kept]


def test_a_commit_is_on_the_drive(store_file: Path) -> None:
    """On macOS as well, where that takes more than fsync; a new store and one that is opened again."""
    for _ in range(2):
        with Store(store_file) as store:
            store.add(record())
            settings = ("synchronous", "fullfsync", "checkpoint_fullfsync")
            found = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
            assert found == [2, 1, 1]


def test_without_a_home_folder_the_store_needs_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As for a user whom the system does not know, in a container or a service."""
    for name in ("METALMARK_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(StoreError, match="no place for the store: this user's home folder is not known") as caught:
        store_path()
    assert "METALMARK_STORE" in caught.value.hint
    with pytest.raises(StoreError, match=r"The store ~/store\.sqlite3 can't be found"):
        store_path("~/store.sqlite3")
    assert store_path(str(tmp_path / "s.sqlite3")) == tmp_path / "s.sqlite3"


READ_ONLY = """
import os, sys
import urllib.parse  # Path.as_uri imports it late, when it can't be read any more
from pathlib import Path
from metalmark.errors import StoreError
from metalmark.store.sqlite import Store
import metalmark.model.codec
path = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
with Store(path, readonly=True) as store:
    assert store.count() == 1, store.count()
    assert len(store.find([])) == 1
try:
    Store(path)
except StoreError as error:
    print(error.message)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own is closed to the one that root becomes below."""
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name, "open")
        folder.mkdir(mode=0o755)
        folder.parent.chmod(0o755)
        try:
            yield folder
        finally:
            folder.chmod(0o755)


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


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "file" / "store.sqlite3")


KILLED = """
import os, sys
from pathlib import Path
from metalmark.store.sqlite import Store
from tests.samples import record
with Store(Path(sys.argv[1])) as store:
    for number in range(1000):
        store.add(record(cell=number))
        print(number, flush=True)
"""


def test_kill_minus_nine_loses_nothing_that_was_committed(store_file: Path) -> None:
    said = kill_after(KILLED, store_file)
    with Store(store_file) as store:
        cells = sorted(found.cell for found in store.find([]))
    assert cells == list(range(len(cells)))
    assert len(cells) > said


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "a"))
    assert store_path() == tmp_path / "a"
    assert store_path(str(tmp_path / "b")) == tmp_path / "b"
    monkeypatch.delenv("METALMARK_STORE")
    assert store_path().name == "records.sqlite3"


def test_placeholders_have_no_numbers() -> None:
    """Python 3.12 warns of numbered ones beside a sequence of values, 3.14 refuses them; 3.11 says nothing."""
    found = [path.name for path in Path(sqlite.__file__).parent.glob("*.py") if re.search(r"\?\d", path.read_text())]
    assert found == []
