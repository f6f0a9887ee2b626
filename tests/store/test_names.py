"""Names of runs: a table that came later, in stores that are older than it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from metalmark.errors import UsageError
from metalmark.store.sqlite import LAYOUT, Store
from tests.samples import record
from tests.store.killing import kill_after


def test_a_name_moves_and_a_tag_gathers(store_file: Path) -> None:
    first, second = record(sweep="aaaaaaaaaa"), record(sweep="bbbbbbbbbb")
    with Store(store_file) as store:
        store.add_all([first, second])
        store.name("main", ["aaaaaaaaaa"])
        assert store.find(["main"]) == [first]
        store.name("main", [second.id])
        assert store.find(["main"]) == [second]
        store.name("laptop", ["aaaaaaaaaa"], add=True)
        store.name("laptop", ["bbbbbbbbbb"], add=True)
        store.name("laptop", ["bbbbbbbbbb"], add=True)
        assert store.find(["laptop"]) == [first, second]
    with Store(store_file, readonly=True) as store:
        assert store.names() == {second.id: ["main"], "aaaaaaaaaa": ["laptop"], "bbbbbbbbbb": ["laptop"]}


def test_a_named_sweep_grows_with_what_is_added_to_it(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record(sweep="aaaaaaaaaa"))
        store.name("main", ["aaaaaaaaaa"])
        store.add(record(sweep="aaaaaaaaaa", repeat=1))
        assert len(store.find(["main"])) == 2


def test_a_store_from_before_names_stays_readable_and_can_be_given_one(store_file: Path) -> None:
    kept = record()
    with Store(store_file) as store:
        store.add(kept)
    with sqlite3.connect(store_file) as older:
        tables = {name for (name,) in older.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        layout = older.execute("PRAGMA user_version").fetchone()[0]
    older.close()
    assert "names" not in tables, "made with the first name, so a store that has none is as older Metalmarks made it"
    assert layout == LAYOUT == 1, "and so they read the new store too"
    with Store(store_file, readonly=True) as store:
        assert store.names() == {}
        assert store.find([kept.id]) == [kept]
        with pytest.raises(UsageError, match="no record or sweep 'main'"):
            store.find(["main"])
    with Store(store_file) as store:
        assert not store.unname("main")
        store.name("main", [kept.id])
    with Store(store_file) as store:
        assert store.find(["main"]) == [kept]
        assert store.unname("main")
        assert store.names() == {}
        assert store.find([]) == [kept]


@pytest.mark.parametrize("word", ["last", "published", "", "a b", "x/y", "-x", "<script>", "é", "a" * 65, "'; DROP--"])
def test_what_can_not_be_a_name(store_file: Path, word: str) -> None:
    with Store(store_file) as store:
        store.add(record())
        with pytest.raises(UsageError):
            store.name(word, ["sweep00001"])
        assert store.names() == {}


def test_an_id_is_no_name(store_file: Path) -> None:
    kept = record()
    with Store(store_file) as store:
        store.add(kept)
        for word in (kept.id, kept.sweep):
            with pytest.raises(UsageError, match="id of a run"):
                store.name(word, [kept.id])
        assert store.find([kept.id]) == [kept]


def test_a_name_of_what_was_deleted(store_file: Path) -> None:
    gone = record()
    with Store(store_file) as store:
        store.add(gone)
        store.name("main", [gone.id])
        store.delete([gone.id])
        with pytest.raises(UsageError, match="'main' any more"):
            store.find(["main"])


KILLED = """
import sys
from pathlib import Path
from metalmark.store.sqlite import Store
with Store(Path(sys.argv[1])) as store:
    for number in range(100_000):
        store.name("main", [f"run{number}", f"twin{number}"])
        print(number, flush=True)
"""


def test_kill_minus_nine_leaves_the_old_name_or_the_new_one(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record())
    said = kill_after(KILLED, store_file)
    with Store(store_file) as store:
        named = [run for run, names in store.names().items() if names == ["main"]]
        assert store.count() == 1
    assert len(named) == 2, "both of one writing, never a half"
    number = int(next(run for run in named if run.startswith("run")).removeprefix("run"))
    assert f"twin{number}" in named
    assert number >= said
