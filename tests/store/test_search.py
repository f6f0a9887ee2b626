"""Pages of a large store come from indexes: what SQLite plans is asked, since a clock would only tell on a slow day."""

from __future__ import annotations

from pathlib import Path

import pytest

from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from tests.samples import plan, record, training_run, watched_run


class Planned(Store):
    """Notes what SQLite would do for each query."""

    def __init__(self, path: Path, *, readonly: bool = True) -> None:
        super().__init__(path, readonly=readonly)
        self.plans: list[str] = []
        self.database.connection.set_trace_callback(self._note)

    def _note(self, query: str) -> None:
        if query.lstrip().upper().startswith(("SELECT", "DELETE", "INSERT")):
            self.database.connection.set_trace_callback(None)
            self.plans += [row[3] for row in self.database.connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            self.database.connection.set_trace_callback(self._note)


@pytest.fixture
def filled(store_file: Path, tmp_path: Path) -> Path:
    with Store(store_file) as store:
        store.add_all([record(id=f"run{n:07d}", sweep=f"sweep{n % 5:05d}", cell=n) for n in range(40)])
        store.add_all([watched_run(id=f"loop{n:06d}", name=f"loop {n % 3}") for n in range(20)])
        for n in range(20):
            store.put_training(training_run(id=f"train{n:05d}"), tmp_path / f"trained{n}")
        store.name("main", ["run0000003"])
        store.name("all", ["sweep00002", "loop000002", "train00002"], add=True)
    return store_file


def test_a_list_reads_one_index_and_no_body(filled: Path) -> None:
    with Planned(filled) as store:
        assert len(store.page(limit=10).rows) == 10
        assert store.page(before="run0000020").rows
        assert store.page(after="run0000020").rows
        assert store.page(["torch", "cpu"]).rows
        assert [row.id for row in store.page(["main"]).rows] == ["run0000003"]
        assert {row.kind for row in store.page(["watch"]).rows} == {"watch"}
        assert len(store.rows(limit=3)) == 3
        assert len(store.rows()) == store.count() == 80
        assert len(store.rows_of_last()) == 1
        plans = store.plans
    scans = [line for line in plans if line.startswith("SCAN")]
    assert scans
    assert all("COVERING INDEX" in line or line == "SCAN names" for line in scans), scans
    assert not [line for line in plans if "TEMP B-TREE FOR ORDER BY" in line]


@pytest.mark.parametrize(
    "query", ["run0000001", "run000003", "sweep00002", "main", "all", "last", "loop 1", "trained7", "train00003"]
)
def test_runs_that_are_named_are_looked_up(filled: Path, query: str) -> None:
    with Planned(filled) as store:
        if query == "run000003":
            with pytest.raises(UsageError, match="Several"):
                select(query, store, files=False)
        else:
            assert load([select(query, store, files=False)], store, whole_cells=True)
        plans = store.plans
    assert [line for line in plans if line.startswith("SEARCH")]
    # The newest of all is the end of the list's index.
    assert not [line for line in plans if line.startswith("SCAN") and "runs_in_list" not in line], plans
    assert len([line for line in plans if line.startswith("SCAN")]) == (query == "last")


def test_writing_naming_and_deleting_scan_nothing(filled: Path) -> None:
    with Planned(filled, readonly=False) as store:
        store.add_all([record(), record(id="run0000009", sweep="sweep00004", cell=9)])
        store.name("other", ["run0000009"])
        assert store.rows_of(["run0000001", "loop000001"])
        assert store.of_workloads(["nothing"]) == []
        assert store.delete(["run0000001"]) == 1
        plans = store.plans
    # The window function reads what the index has found, which has no table's name.
    assert not [line for line in plans if line.startswith("SCAN runs")], plans


def test_a_word_is_no_pattern_and_pages_follow_each_other(filled: Path) -> None:
    with Store(filled, readonly=True) as store:
        for word in ("%", "_", "\\", "'", "\ud800", "caf\udce9"):
            assert store.page([word]).rows == ()
        first = store.page(limit=30)
        second = store.page(before=first.rows[-1].id, limit=30)
        third = store.page(before=second.rows[-1].id, limit=30)
        assert (first.newer, first.older) == (False, True)
        assert (second.newer, second.older) == (True, True)
        assert (third.newer, third.older, len(third.rows)) == (True, False, 20)
        assert [*first.rows, *second.rows, *third.rows] == store.rows()[::-1]
        back = store.page(after=third.rows[0].id, limit=30)
        assert back.rows == second.rows
        assert store.page(before="unknown000", limit=30).rows == first.rows


def test_of_many_ceilings_the_newest_few_of_each_kind(store_file: Path) -> None:
    records = [
        record(id=f"{framework}{n:06d}"[:10], plan=plan(workload="ceiling", framework=framework), cell=n,
               started_at=f"2026-11-15T08:00:{n:02d}Z")
        for framework in ("jaxx", "mlxx") for n in range(20)
    ]  # fmt: skip
    with Store(store_file) as store:
        store.add_all(records)
        store.add(training_run(plan=plan(workload="ceiling", framework="jaxx")))
        every = store.of_workloads(["ceiling"])
        one = store.of_workloads(["ceiling"], frameworks=["jaxx"])
    assert len(every) == 16
    ceilings = [found for found in one if isinstance(found, BenchRun)]
    assert len(ceilings) == len(one)
    assert {found.plan.framework for found in ceilings} == {"jaxx"}
    assert sorted(found.cell for found in ceilings) == list(range(12, 20))
