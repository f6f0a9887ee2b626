"""What a use case returns, without running one: tables, rows, filters, and a notebook's HTML."""

from __future__ import annotations

from pathlib import Path

import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.errors import UsageError
from metalmark.model.run import RunKind
from metalmark.store.store import Store
from tests.samples import (
    completed,
    explanation_run,
    failed,
    parity_run,
    plan,
    record,
    training_run,
    tuning_run,
    watched_run,
)


@pytest.fixture
def runs(store_file: Path) -> Runs:
    cells = [
        record(completed(), id="run0000001", cell=0, plan=plan(params={"batch_size": 16})),
        record(completed(), id="run0000002", cell=1, plan=plan(params={"batch_size": 64})),
        record(failed(), id="other00003", cell=2, plan=plan(params={"batch_size": 256})),
    ]
    with Store(store_file) as store:
        store.add_all(cells)
    return mm.runs("last", store=store_file)


def test_runs_are_a_sequence_and_keep_their_kind(runs: Runs) -> None:
    assert len(runs) == 3
    assert runs[0].id == "run0000001"
    assert runs["other"].id == "other00003"
    assert isinstance(runs[1:], Runs)
    assert runs[1:].ids == ["run0000002", "other00003"]
    with pytest.raises(KeyError, match="2 of these runs"):
        runs["run"]
    with pytest.raises(IndexError):
        runs[3]


def test_runs_are_filtered_by_values_and_by_a_function(runs: Runs) -> None:
    assert runs.filter(batch_size=64).ids == ["run0000002"]
    assert runs.filter(ending="completed").filter(batch_size=16).ids == ["run0000001"]
    assert runs.filter(lambda run: run.header.ending != "completed").ids == ["other00003"]
    assert len(runs.filter(batch_size=1)) == 0
    with pytest.raises(UsageError, match="no batchsize"):
        runs[:1].filter(batchsize=16)


def test_rows_are_plain_values_for_any_library(runs: Runs) -> None:
    first = runs.to_dicts()[0]
    assert (first["id"], first["kind"], first["batch_size"], first["dtype"]) == ("run0000001", "bench", 16, "float32")
    assert first["step_s"] > 0
    assert first["flags"] == []
    assert runs.to_dicts()[2]["step_s"] is None
    table = pytest.importorskip("pyarrow") and runs.to_arrow()
    assert table.num_rows == 3
    assert table.column("batch_size").to_pylist() == [16, 64, 256]
    pandas = pytest.importorskip("pandas")
    frame = runs.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["id"]) == runs.ids


def test_runs_print_as_the_commands_table_and_show_as_html(runs: Runs) -> None:
    text = str(runs)
    assert "samples/s" in text
    assert "out of memory" in text
    assert repr(runs) == text
    page = runs._repr_html_()
    assert page.count("<tr>") == 4
    assert "<script" not in page


def test_what_a_user_wrote_is_escaped_in_html(store_file: Path) -> None:
    run = watched_run(name="<img src=x onerror=alert(1)>")
    shown = Runs([run], store=store_file)._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_every_kind_prints_and_gives_rows(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([record(), training_run(), watched_run(), parity_run(), explanation_run(), tuning_run()])
    everything = mm.runs(store=store_file)
    assert {run.header.kind for run in everything} == set(RunKind)
    listed = str(everything)
    for run in everything:
        assert run.id in listed
        assert str(mm.runs(run.id, store=store_file))
    kinds = [entry["kind"] for entry in everything.to_dicts()]
    assert sorted(kinds) == ["bench", "explain", "parity", "training", "tune", "watch"]


def test_the_public_names_stay_functions_after_a_room_of_that_name_is_imported() -> None:
    import metalmark.doctor.catalog
    import metalmark.parity.job
    import metalmark.report.content  # noqa: F401

    assert callable(mm.doctor)
    assert callable(mm.parity)
    assert callable(mm.report)
    assert set(mm.__all__) <= set(dir(mm))
    for name in mm.__all__:
        assert getattr(mm, name) is not None
