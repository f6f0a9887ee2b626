"""The index of trainings: found by id, line-up and name, whatever the name holds; gone folders say so."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from metalmark.errors import StoreError, UsageError
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.model.training import Ending, Goal, TrainingRun
from metalmark.store.sqlite import Store
from metalmark.store.trainings import TrainingStore, indexing
from metalmark.training.job import write_record
from tests.samples import record as measured

PLAN = Plan(
    workload="mnist-mlp",
    params={"batch_size": 32},
    mode=Mode.TRAINING,
    framework="torch",
    device=Device(kind=DeviceKind.CPU),
)


def training(identifier: str, *, second: int = 0) -> TrainingRun:
    at = f"2026-11-15T08:00:{second:02d}.000000Z"
    return TrainingRun(id=identifier, started_at=at, plan=PLAN, goal=Goal(epochs=2))


def add(path: Path, record: TrainingRun, folder: Path, lineup: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, record)
    with TrainingStore(path) as store:
        store.add_training(record, folder, lineup=lineup)


def found(path: Path, word: str) -> list[str]:
    with TrainingStore(path, readonly=True) as store:
        return [row.id for row in store.find_trainings(word)]


def test_a_store_without_trainings_has_none(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(measured())
    with TrainingStore(store_file, readonly=True) as store:
        assert store.trainings() == []
        assert store.find_trainings("run1") == []
        assert store.count_trainings() == 0
    with TrainingStore(store_file) as store:
        assert store.forget_trainings(["aaaaaaaaaa"]) == 0


def test_by_id_lineup_name_and_beginning(store_file: Path, tmp_path: Path) -> None:
    add(store_file, training("aaaaaaaaaa"), tmp_path / "run1" / "torch-cpu", "lllllllll1")
    add(store_file, training("aaaabbbbbb", second=1), tmp_path / "run1" / "torch-any", "lllllllll1")
    add(store_file, training("cccccccccc", second=2), tmp_path / "run10")
    both = ["aaaaaaaaaa", "aaaabbbbbb"]
    assert found(store_file, "lllllllll1") == both
    assert found(store_file, "run1") == both
    assert found(store_file, "run1/torch-any") == both[1:]
    assert found(store_file, "cccc") == ["cccccccccc"]
    assert found(store_file, "run10") == ["cccccccccc"]
    assert found(store_file, "nothing") == []
    assert found(store_file, "last") == []
    with pytest.raises(UsageError, match="Several runs begin"):
        found(store_file, "aaaa")


def test_a_beginning_that_a_record_has_too_is_refused(store_file: Path, tmp_path: Path) -> None:
    add(store_file, training("aaaaaaaaaa"), tmp_path / "run1")
    with Store(store_file) as store:
        store.add(measured(id="aaaazzzzzz"))
        store.name("run1", ["aaaazzzzzz"])
    with pytest.raises(UsageError, match="Several runs begin"):
        found(store_file, "aaaa")
    assert found(store_file, "run1") == [], "a name that was given means what it was given to"
    with TrainingStore(store_file, readonly=True) as store:
        words, rows = store.split_trainings(["aaaaaaaaaa", "aaaazzzzzz"])
    assert (words, [row.id for row in rows]) == (["aaaazzzzzz"], ["aaaaaaaaaa"])


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "'; DROP TABLE trainings; --", "a b\tc\nd", "ünï çødé 模型", "%", "_", "*"]
)
def test_a_name_may_hold_anything(store_file: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("/", "\u2215")
    add(store_file, training("aaaaaaaaaa"), folder)
    add(store_file, training("bbbbbbbbbb"), tmp_path / "other")
    assert found(store_file, folder.name) == ["aaaaaaaaaa"]


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_name_that_is_no_text_is_listed_and_its_folder_found(store_file: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"this file system wants text: {error}")
    add(store_file, training("aaaaaaaaaa"), folder)
    with TrainingStore(store_file, readonly=True) as store:
        (row,) = store.trainings()
    assert row.name == "caf\\xe9"
    assert row.path == folder
    assert row.record().id == "aaaaaaaaaa"


def test_what_is_known_of_it_is_replaced(store_file: Path, tmp_path: Path) -> None:
    first = training("aaaaaaaaaa")
    add(store_file, first, tmp_path / "run1")
    with TrainingStore(store_file, readonly=True) as store:
        assert [row.outcome for row in store.trainings()] == ["not begun"]
    why = Failed(kind=FailureKind.OUT_OF_MEMORY, message="no room")
    add(store_file, replace(first, ending=Ending.FAILED, failure=why), tmp_path / "run1")
    with TrainingStore(store_file, readonly=True) as store:
        assert [row.outcome for row in store.trainings()] == ["out of memory"]


def test_the_newest_last_and_a_limit(store_file: Path, tmp_path: Path) -> None:
    for second, letter in enumerate("cab"):
        add(store_file, training(letter * 10, second=second), tmp_path / letter)
    with TrainingStore(store_file, readonly=True) as store:
        assert [row.id[0] for row in store.trainings()] == ["c", "a", "b"]
        assert [row.id[0] for row in store.trainings(limit=2)] == ["a", "b"]


def test_a_folder_that_is_gone_is_named(store_file: Path, tmp_path: Path) -> None:
    with TrainingStore(store_file) as store:
        store.add_training(training("aaaaaaaaaa"), tmp_path / "never")
        (row,) = store.trainings()
    with pytest.raises(UsageError, match="is gone") as caught:
        row.record()
    assert "runs delete aaaaaaaaaa" in caught.value.hint


def test_a_store_that_fails_costs_no_training(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite3"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    said: list[str] = []
    hear = indexing(foreign, tmp_path, lineup="", say=said.append)
    hear(training("aaaaaaaaaa"))
    assert len(said) == 1
    assert "another program" in said[0]
    with pytest.raises(StoreError):
        TrainingStore(foreign)
