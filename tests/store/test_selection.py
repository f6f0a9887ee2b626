"""One resolver from a query to runs: id, beginning, sweep, name, tag, `last`, folder, file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import AnyRun, encode_export
from metalmark.model.training import TrainingRun
from metalmark.store.bundle import encode_bundle
from metalmark.store.selection import Selection, load, select, select_all, stored_rows
from metalmark.store.store import Store
from metalmark.training.folder import LINEUP, write_record
from metalmark.training.lineup import Lineup, read_lineup
from tests.samples import record, training_run, watched_run

NONSENSE = [
    "%", "_", "", "*", "ö", " ", "nothing", "zzzzzzzzzz", "' OR 1=1 --", "<script>", "a" * 10_000, "..", "~",
    "\x00", "a\x00b", "\udce9", "\ud800", "caf\udce9", "/", "//", "a/" * 5000, "\n", "-", "--help",
]  # fmt: skip


def keep(store: Store, folder: Path, **changes: Any) -> TrainingRun:
    """A training in its folder and in the store."""
    run = training_run(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, run)
    store.put_training(run, folder)
    return run


def keep_several(store: Store, folder: Path, *names: str) -> list[TrainingRun]:
    """Trainings of one command, in folders under one."""
    runs = [keep(store, folder / name, sweep="lineup0001", cell=cell) for cell, name in enumerate(names)]
    lineup = Lineup(id="lineup0001", created_at="", members=names)
    (folder / LINEUP).write_bytes(msgspec.json.encode(lineup))
    assert read_lineup(folder) == lineup
    return runs


def ids(store: Store, query: str, **options: Any) -> list[str]:
    return [run.id for run in load([select(query, store, **options)], store)]


@pytest.fixture
def store(store_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two sweeps, a training and a watched run, the newest last; the working folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Store(store_file) as opened:
        opened.add_all([
            record(id="aaaa000001", sweep="sweepaaaaa", started_at="2026-11-15T08:00:01Z"),
            record(id="aaaa000002", sweep="sweepaaaaa", cell=1, started_at="2026-11-15T08:00:02Z"),
            record(id="aaaa000003", sweep="sweepaaaaa", repeat=1, started_at="2026-11-15T08:00:03Z"),
            record(id="bbbb000001", sweep="sweepbbbbb", started_at="2026-11-15T08:00:04Z"),
        ])  # fmt: skip
        keep(opened, tmp_path / "trained", id="cccc000001", started_at="2026-11-15T08:00:05Z")
        opened.add(watched_run(id="dddd000001", started_at="2026-11-15T08:00:06Z"))
        yield opened


def test_an_id_or_the_beginning_of_one_in_any_case(store: Store) -> None:
    for query in ("bbbb000001", "BBBB000001", "bbbb", "B"):
        assert ids(store, query) == ["bbbb000001"]
        assert select(query, store).ids == ("bbbb000001",)
        assert select(query, store).sweep == ""
    assert ids(store, "cccc") == ["cccc000001"]
    assert ids(store, "dddd") == ["dddd000001"]


def test_a_beginning_of_several_is_refused(store: Store) -> None:
    for query in ("a", "aaaa", "AAAA00000"):
        with pytest.raises(UsageError, match="Several runs begin") as caught:
            select(query, store)
        assert "more of its characters" in caught.value.hint
    store.add(watched_run(id="bbbb000002"))
    with pytest.raises(UsageError, match="Several runs begin"):
        select("bbbb", store)
    assert ids(store, "bbbb000001") == ["bbbb000001"], "of whatever kind the other is"


def test_a_sweep_is_meant_as_a_whole(store: Store) -> None:
    selection = select("SweepAAAAA", store)
    assert selection.sweep == "sweepaaaaa"
    assert selection.ids == ("sweepaaaaa",), "a name given to it is given to what is added to it later too"
    assert ids(store, "sweepaaaaa") == ["aaaa000001", "aaaa000002", "aaaa000003"], "by repeat, then by cell"


def test_names_and_tags(store: Store) -> None:
    store.name("main", ["sweepbbbbb"])
    store.name("mine", ["cccc000001"], add=True)
    store.name("mine", ["dddd000001", "sweepaaaaa"], add=True)
    assert ids(store, "main") == ["bbbb000001"]
    assert set(ids(store, "mine")) == {"cccc000001", "dddd000001", "aaaa000001", "aaaa000002", "aaaa000003"}
    assert select("main", store).sweep == "", "a name may come to stand for more"
    assert select("main", store).ids == ("bbbb000001",)
    with pytest.raises(UsageError, match="no run, sweep or name 'Main'"):
        select("Main", store)


def test_a_name_of_what_was_deleted(store: Store) -> None:
    store.name("main", ["bbbb000001"])
    store.delete(["bbbb000001"])
    with pytest.raises(UsageError, match="'main' any more"):
        select("main", store)


def test_a_tag_of_more_runs_than_a_query_may_have_values(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record(id="aaaa000001"))
        store.name("many", [f"run{number:07d}" for number in range(40_000)] + ["aaaa000001"])
        assert ids(store, "many") == ["aaaa000001"]


def test_last_is_what_the_newest_command_made_of_any_kind(store: Store, tmp_path: Path) -> None:
    assert ids(store, "last") == ["dddd000001"]
    assert select("last", store).ids == ("dddd000001",)
    store.delete(["dddd000001"])
    assert ids(store, "last") == ["cccc000001"]
    store.delete(["cccc000001"])
    assert ids(store, "last") == ["bbbb000001"]
    assert select("last", store).sweep == "sweepbbbbb"
    runs = [
        keep(store, tmp_path / "two" / name, sweep="lineup0001", cell=cell, started_at=f"2026-11-16T08:00:0{cell}Z")
        for cell, name in enumerate(("torch-cpu", "jax-cpu"))
    ]
    assert ids(store, "last") == [run.id for run in runs]
    assert select("last", store).ids == ("lineup0001",)


def test_last_of_an_empty_store_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last").write_text("a file of that name is not meant")
    with Store(tmp_path / "none", readonly=True) as store, pytest.raises(UsageError, match="no run yet") as caught:
        select("last", store)
    assert "metalmark bench" in caught.value.hint


def test_the_name_of_a_watched_run_means_every_run_of_that_name(store: Store) -> None:
    store.add(watched_run(id="dddd000002", started_at="2026-11-15T09:00:00Z"))
    store.add(watched_run(id="dddd000003", name="my loop/2"))
    assert ids(store, "my loop") == ["dddd000001", "dddd000002"]
    assert ids(store, "my loop/2") == ["dddd000003"]


# Folders of trainings


def test_the_name_of_a_trainings_folder_from_anywhere(store: Store, tmp_path: Path) -> None:
    first, second = keep_several(store, tmp_path / "run1", "torch-cpu", "torch-any")
    other = keep(store, tmp_path / "run10")
    assert ids(store, "run1") == [first.id, second.id]
    assert ids(store, "run1/torch-any") == [second.id]
    assert ids(store, "run10") == [other.id]
    assert ids(store, "lineup0001") == [first.id, second.id]
    store.name("run1", ["bbbb000001"])
    assert ids(store, "run1") == ["bbbb000001"], "a name that was given means what it was given to"


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "'; DROP TABLE runs; --", "a b\tc\nd", "ünï çødé 模型", "%", "_", "*"]
)
def test_a_folders_name_may_hold_anything(store: Store, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("/", "\u2215")
    run = keep(store, folder)
    keep(store, tmp_path / "other")
    assert ids(store, folder.name) == [run.id]


def test_a_folder_is_read_as_it_is_now_and_its_stored_run_is_the_same(store: Store, tmp_path: Path) -> None:
    run = keep(store, tmp_path / "here" / "run1")
    for query in ("run1", "./run1", "run1/", str(tmp_path / "here" / "run1")):
        selection = select(query, store)
        assert selection.runs == (run,)
        assert [row.id for row in selection.rows] == [run.id]
        assert selection.ids == (run.id,), "so it can be named and deleted by its folder"
        assert [row.id for row in stored_rows([selection], what="delete")] == [run.id]
        assert load([selection], store) == [run]
    os.chdir("run1")
    for query in (".", "../run1", "..//run1/."):
        assert select(query, store).runs == (run,)


def test_a_folder_that_no_store_knows(store: Store, tmp_path: Path) -> None:
    run = training_run()
    (tmp_path / "elsewhere").mkdir()
    write_record(tmp_path / "elsewhere", run)
    selection = select(str(tmp_path / "elsewhere"), store)
    assert (selection.runs, selection.rows) == ((run,), ())
    assert load([selection], store) == [run]
    with pytest.raises(UsageError, match="is a file or folder, and delete takes runs of the store") as caught:
        stored_rows([selection], what="delete")
    assert "runs import" in caught.value.hint


def test_a_folder_of_several_trainings(store: Store, tmp_path: Path) -> None:
    runs = keep_several(store, tmp_path / "devices", "torch-cpu", "torch-any")
    selection = select(str(tmp_path / "devices"), store)
    assert list(selection.runs) == runs
    assert [row.id for row in stored_rows([selection], what="delete")] == [run.id for run in runs]
    store.delete([runs[0].id])
    selection = select(str(tmp_path / "devices"), store)
    assert load([selection], store) == runs
    with pytest.raises(UsageError, match="is a file or folder"):
        stored_rows([selection], what="delete")


def test_damaged_folders(store: Store, tmp_path: Path) -> None:
    for name, file in (("one", "record.json"), ("several", LINEUP)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b'{"schema": 1, "id": "\xff"')
        with pytest.raises(FormatError, match="damaged"):
            select(str(tmp_path / name), store)
    (tmp_path / "several" / LINEUP).write_text(
        '{"schema": 1, "id": "lineup0001", "created_at": "", "members": ["../../secret"]}'
    )
    with pytest.raises(FormatError, match="outside of its own"):
        select(str(tmp_path / "several"), store)


# Files


def test_an_export_and_a_bundle(store: Store, tmp_path: Path) -> None:
    runs: list[AnyRun] = [record(), training_run(), watched_run()]
    export, bundle, no_ending = (tmp_path / "here" / name for name in ("runs.json", "runs.bundle", "runs"))
    export.write_bytes(encode_export(runs))
    bundle.write_bytes(encode_bundle(runs))
    no_ending.write_bytes(export.read_bytes())
    for query in (str(export), "runs.json", "./runs.json", str(bundle), "runs.bundle", str(no_ending), "runs"):
        selection = select(query, store)
        assert sorted(selection.runs, key=lambda run: run.id) == sorted(runs, key=lambda run: run.id)
        assert (selection.rows, selection.sweep, selection.ids) == ((), "", ())
        with pytest.raises(UsageError, match="takes runs of the store"):
            stored_rows([selection], what="naming")
    assert len(load(select_all(["runs.json", "runs.bundle", "aaaa000001", "sweepaaaaa"], store), store)) == 6


def test_a_file_of_that_name_hides_no_run_sweep_or_name(store: Store, tmp_path: Path) -> None:
    store.name("main", ["bbbb000001"])
    store.name("main.json", ["bbbb000001"])
    for name in ("main", "bbbb000001", "sweepaaaaa", "trained", "my loop"):
        (tmp_path / "here" / name).write_text("mine")
        assert select(name, store).rows
        with pytest.raises(FormatError, match="not an export"):
            select(f"./{name}", store)
    assert ids(store, "main.json") == ["bbbb000001"], "until there is a file of that name"
    (tmp_path / "here" / "main.json").write_bytes(encode_export([record(id="eeee000001")]))
    assert ids(store, "main.json") == ["eeee000001"]


def test_files_that_are_none(store: Store, tmp_path: Path) -> None:
    for query in ("none.json", "none.bundle", "none.json.gz", "a\x00b.json", "a" * 5000 + ".json"):
        with pytest.raises(FormatError, match="can't be read"):
            select(query, store)
    for query in ("no/where", str(tmp_path), "./"):
        with pytest.raises(FormatError, match="neither a file nor the folder of a training"):
            select(query, store)
    (tmp_path / "empty.json").write_bytes(encode_export([]))
    with pytest.raises(UsageError, match="holds no runs"):
        select(str(tmp_path / "empty.json"), store)


@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize("query", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_means_nothing(store: Store, query: str, files: bool) -> None:
    with pytest.raises((UsageError, FormatError), match=r"no run, sweep or name|neither a file nor"):
        select(query, store, files=files)


def test_without_files_no_file_is_touched(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "runs.json").write_bytes(encode_export([record()]))
    run = keep(store, tmp_path / "here" / "run1")
    store.name("main", ["bbbb000001"])

    def touched(path: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{path} was touched")

    with monkeypatch.context() as patched:
        for module, name in ((os, "stat"), (os, "lstat"), (os, "open"), (os, "scandir"), (os, "listdir")):
            patched.setattr(module, name, touched)
        patched.setattr("io.open", touched)
        patched.setattr("builtins.open", touched)
        assert select("run1", store, files=False).ids == (run.id,)
        for query in ("main", "last", "sweepaaaaa", "aaaa000001", "bbbb", "my loop"):
            assert not select(query, store, files=False).runs
        for query in ("runs.json", "./runs.json", "./run1", str(tmp_path / "trained"), "/etc/passwd", "../here/run1"):
            with pytest.raises(UsageError, match="no run, sweep or name"):
                select(query, store, files=False)


# Several queries


def test_each_run_is_loaded_once_and_all_queries_are_resolved_first(store: Store) -> None:
    queries = ["aaaa000002", "sweepaaaaa", "dddd", "last"]
    found = load(select_all(queries, store), store)
    assert [run.id for run in found] == ["aaaa000002", "aaaa000001", "aaaa000003", "dddd000001"]
    rows = stored_rows(select_all(queries, store), what="delete")
    assert [row.id for row in rows] == [run.id for run in found]
    with pytest.raises(UsageError, match="'nothing'"):
        select_all(["aaaa000001", "nothing"], store)


def test_a_run_stands_for_its_cell_where_that_is_asked_for(store: Store) -> None:
    assert [run.id for run in load([select("aaaa000003", store)], store, whole_cells=True)] == [
        *("aaaa000001", "aaaa000003"),
    ]
    for alone in ("cccc000001", "dddd000001"):
        assert [run.id for run in load([select(alone, store)], store, whole_cells=True)] == [alone]
    run = record()
    outside = Selection(query="x.json", runs=(run,))
    assert load([outside], store, whole_cells=True) == [run]
