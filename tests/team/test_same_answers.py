"""A file and a server give the same answer to every question, and refuse the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.errors import FormatError, StoreError, UsageError
from metalmark.model.plan import Sweep
from metalmark.model.training import Ending
from metalmark.store.address import Address, ServerAddress
from metalmark.store.selection import load, select, select_all
from metalmark.store.store import Store
from tests.samples import (
    explanation_run,
    failed,
    parity_run,
    plan,
    record,
    training_run,
    tuning_run,
    watched_run,
)

NAMES = ("Größe", "groesse", "Zebra", "apple", "50% done", "a_b", "axb", "back\\slash", "quo'te", "日本")


def fill(store: Store, trained: Path) -> None:
    runs: list[Any] = [
        record(id=f"bench{n:05d}", sweep=f"sweep{n % 3:05d}", cell=n % 4, repeat=n // 4,
               started_at=f"2026-11-15T08:00:{n % 7:02d}.000000Z",
               plan=plan(workload=("mnist-mlp", "conv256", "gpt")[n % 3], framework=("torch", "mlx")[n % 2]))
        for n in range(24)
    ]  # fmt: skip
    runs += [watched_run(id=f"loop{n:06d}", name=name) for n, name in enumerate(NAMES)]
    runs += [record(failed(), id="failed0001", sweep="sweep00009"), parity_run(id="parity0001")]
    runs += [explanation_run(id="explain001"), tuning_run(id="tuning0001")]
    assert store.add_all(runs) == len(runs)
    for n, name in enumerate(("run1", "run2", "Run1")):
        store.put_training(training_run(id=f"train{n:05d}"), trained / name)
    store.put_training(training_run(id="train00009", sweep="trainings1"), trained / "several" / "one")
    store.add_sweep(Sweep(id="sweep00001", created_at="2026-11-15T08:00:00Z", plans=(plan(),), paths={"x": "/tmp/x"}))
    store.name("main", ["bench00003"])
    store.name("fast", ["sweep00002", "loop000002", "train00002"], add=True)
    store.name("Fast", ["bench00004"], add=True)


QUESTIONS: dict[str, Callable[[Store], Any]] = {
    "rows": lambda store: store.rows(),
    "newest": lambda store: store.rows(limit=5),
    "of a sweep": lambda store: store.rows(sweep="sweep00001"),
    "count": lambda store: store.count(),
    "names": lambda store: store.names(),
    "last": lambda store: store.rows_of_last(),
    "cells": lambda store: store.rows_of_cells(store.rows_of(["bench00005", "train00000", "explain001"])),
    "of ids": lambda store: store.rows_of(["loop000003", "gone000000", "bench00001"]),
    "of workloads": lambda store: store.of_workloads(["mnist-mlp", "gpt"], frameworks=["mlx"]),
    "of any framework": lambda store: store.of_workloads(["mnist-mlp"]),
    "loaded": lambda store: store.load(store.rows()),
    "sweep": lambda store: store.sweep("last"),
    "sweep by its beginning": lambda store: store.sweep("sweep0000"),
}
WORDS = [
    [], ["torch"], ["TORCH", "gpt"], ["größe"], ["GROESSE"], ["50%"], ["%"], ["_"], ["a_b"], ["back\\"], ["quo'te"],
    ["main"], ["fast"], ["FAST"], ["watch"], ["2026-11-15"], ["日"], ["nothing like it"], ["zebra", "zebra"],
]  # fmt: skip
QUERIES = [
    "last", "main", "fast", "Fast", "FAST", "bench00003", "BENCH00003", "bench0000", "bench", "sweep00001",
    "run1", "Run1", "several", "Größe", "größe", "50% done", "back\\slash", "zero\0byte", "zero\\x00byte", "no-such",
    "", "%", "failed", "explain001", "日本", "'; DROP TABLE runs; --", "~", "train00009",
]  # fmt: skip


@pytest.fixture
def both(server: ServerAddress, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with Store(tmp_path / "file.sqlite3") as file, Store(server) as shared:
        for store in (file, shared):
            fill(store, tmp_path / "trained")
        yield file, shared


def outcome(ask: Callable[[Store], Any], store: Store) -> Any:
    try:
        return ask(store)
    except (UsageError, StoreError, FormatError) as error:
        return type(error), error.message.replace(str(store.address), "STORE"), error.hint


def assert_same(ask: Callable[[Store], Any], both: tuple[Store, Store], what: object) -> None:
    file, shared = (outcome(ask, store) for store in both)
    assert shared == file, what


def test_every_question_has_one_answer(both: tuple[Store, Store]) -> None:
    file, _ = both
    for what, ask in QUESTIONS.items():
        assert_same(ask, both, what)
    for words in WORDS:
        pages: list[Any] = [outcome(lambda store, words=words: store.page(words, limit=7), file)]
        assert_same(lambda store, words=words: store.page(words, limit=7), both, words)
        while pages[-1].older and pages[-1].rows:
            before, first = pages[-1].rows[-1].id, pages[-1].rows[0].id
            assert_same(lambda store, a=first, w=words: store.page(w, after=a, limit=7), both, (words, first))
            assert_same(lambda store, b=before, w=words: store.page(w, before=b, limit=7), both, (words, before))
            pages.append(file.page(words, before=before, limit=7))
    for query in QUERIES:
        assert_same(lambda store, query=query: select(query, store, files=False), both, query)
        assert_same(lambda store, query=query: store.rows_named(query), both, query)
        assert_same(lambda store, query=query: store.sweep(query), both, query)
    assert_same(lambda store: load(select_all(["main", "run1"], store, files=False), store, whole_cells=True), both, "")
    # The answers are of something: a word that finds nothing everywhere would prove nothing.
    assert len(file.page(["TORCH", "gpt"]).rows) == 4
    assert [row.id for row in file.page(["50%"]).rows] == ["loop000004"]


def test_every_change_does_the_same(both: tuple[Store, Store], tmp_path: Path) -> None:
    changed = record(id="bench00003", sweep="other00000")
    changes: dict[str, Callable[[Store], Any]] = {
        "the same twice": lambda store: store.add_all(store.load(store.rows_of(["bench00003", "loop000001"]))),
        "another body": lambda store: store.add_all([record(id="brandnew01"), changed]),
        "put": lambda store: store.put(changed),
        "training": lambda store: store.put_training(
            training_run(id="train00000", ending=Ending.INTERRUPTED), tmp_path / "trained" / "moved"
        ),
        "the same sweep": lambda store: store.add_sweep(store.sweep("sweep00001")),
        "another sweep": lambda store: store.add_sweep(msgspec.structs.replace(store.sweep("sweep00001"), repeats=9)),
        "moved name": lambda store: store.name("main", ["sweep00002"]),
        "tag": lambda store: store.name("fast", ["bench00000", "loop000002"], add=True),
        "name of a run": lambda store: store.name("bench00001", ["bench00000"]),
        "reserved": lambda store: store.name("last", ["bench00000"]),
        "unname": lambda store: (store.unname("Fast"), store.unname("Fast")),
        "delete": lambda store: store.delete(["bench00007", "bench00007", "gone000000", "train00002"]),
        "damage": lambda store: store.database.transact(
            lambda: store.database.write("UPDATE runs SET body = ?, kind = 'bench' WHERE id = 'loop000004'", (b"\xff",))
        ),
        "mended": lambda store: store.add_all([record(id="loop000004")]),
    }  # fmt: skip
    for what, change in changes.items():
        assert_same(change, both, what)
        for question, ask in QUESTIONS.items():
            assert_same(ask, both, (what, question))
    assert not both[1].rows_of(["brandnew01"])  # all or none


def test_a_text_that_postgresql_has_not_is_kept(server: ServerAddress) -> None:
    """Its texts have no zero: the list shows it by its code, and the run is whole."""
    run = watched_run(id="zero000001", name="zero\0byte " + "and long " * 2000)
    with Store(server) as store:
        store.add(run)
        (row,) = store.rows_called("zero000001")
        assert row.name.startswith("zero\\x00byte and long")
        assert store.load([row]) == [run]


def test_paths_of_this_machine_stay_on_it(server: ServerAddress, tmp_path: Path) -> None:
    """Others read the store: where a training's folder or a sweep's own files are is known here alone."""
    folder = tmp_path / "checkpoints-of-mine" / "run1"
    with Store(server) as store:
        store.put_training(training_run(id="train00000"), folder)
        store.add_sweep(
            Sweep(id="sweep00001", created_at="2026-11-15T08:00:00Z", plans=(plan(),), paths={"net": "/mine/net.py"})
        )
        (row,) = store.rows()
        assert row.path == folder
        assert row.name == "run1"
        assert store.sweep("last").paths == {"net": "/mine/net.py"}
        held = store.database.read("SELECT folder, body FROM runs") + store.database.read("SELECT id, body FROM sweeps")
    assert held[0][0] is None
    assert b"mine" not in b"".join(bytes(body) for _, body in held)
    local: Address = server
    with Store(ServerAddress(f"{local}?application_name=elsewhere", server.secrets)) as elsewhere:
        (row,) = elsewhere.rows()
        assert row.path is None
        assert elsewhere.sweep("last").paths == {}
        assert elsewhere.load([row])[0].id == "train00000"
