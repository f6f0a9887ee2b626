"""Pages of a large store come from indexes: what SQLite plans is asked, since a clock would only tell on a slow day."""

from __future__ import annotations

from pathlib import Path

import pytest

from metalmark.store.search import SearchStore
from metalmark.store.sqlite import Store
from tests.samples import plan, record


class Planned(SearchStore):
    """Notes what SQLite would do for each query."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, readonly=True)
        self.plans: list[str] = []
        self._connection.set_trace_callback(self._note)

    def _note(self, query: str) -> None:
        if query.lstrip().upper().startswith("SELECT") and "sqlite_master" not in query:
            self._connection.set_trace_callback(None)
            self.plans += [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            self._connection.set_trace_callback(self._note)


@pytest.fixture
def filled(store_file: Path) -> Path:
    with Store(store_file) as store:
        store.add_all([record(id=f"run{n:07d}", sweep=f"sweep{n % 5:05d}", cell=n) for n in range(40)])
        store.name("main", ["run0000003"])
    return store_file


def test_a_list_reads_one_index_and_no_body(filled: Path) -> None:
    with Planned(filled) as store:
        assert len(store.page(limit=10).rows) == 10
        store.page(before="run0000020")
        store.page(after="run0000020")
        store.page(["torch", "cpu"])
        store.page(["main"])
        store.count()
        plans = store.plans
    scans = [line for line in plans if line.startswith("SCAN")]
    assert scans
    assert all("COVERING INDEX" in line or line == "SCAN names" for line in scans), scans
    assert not [line for line in plans if "TEMP B-TREE FOR ORDER BY" in line]


def test_runs_that_are_named_are_looked_up(filled: Path) -> None:
    with Planned(filled) as store:
        for word in ("run0000001", "sweep00002", "main"):
            assert store.find([word])
        assert store.of_sweep("sweep00002", 2)
        store.of_workloads(["nothing"])
        plans = store.plans
    assert [line for line in plans if line.startswith("SEARCH")]
    assert not [line for line in plans if line.startswith("SCAN records")], plans


def test_a_store_made_before_the_index_is_read_and_gains_it(filled: Path) -> None:
    with Store(filled) as store:
        store._connection.execute("DROP INDEX records_in_list")
    with SearchStore(filled, readonly=True) as search:
        before = search.page(["torch"], limit=7)
        assert len(before.rows) == 7
        assert before.older
    with Store(filled) as store:
        store.add(record(id="another000", plan=plan(framework="jax")))
        found = store._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'records_in_list'").fetchone()
        assert found


def test_of_many_ceilings_the_newest_few_of_each_kind(store_file: Path) -> None:
    records = [
        record(id=f"{framework}{n:06d}"[:10], plan=plan(workload="ceiling", framework=framework), cell=n,
               started_at=f"2026-11-15T08:00:{n:02d}Z")
        for framework in ("jaxx", "mlxx") for n in range(20)
    ]  # fmt: skip
    with Store(store_file) as store:
        store.add_all(records)
        every = store.of_workloads(["ceiling"])
        one = store.of_workloads(["ceiling"], frameworks=["jaxx"])
    assert len(every) == 16
    assert {found.plan.framework for found in one} == {"jaxx"}
    assert sorted(found.cell for found in one) == list(range(12, 20))
