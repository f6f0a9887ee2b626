from __future__ import annotations

from metalmark.model.plan import Mode
from metalmark.model.run import FailureKind
from metalmark.report.text.tables import published_tables
from metalmark.results.cells import cells_of
from metalmark.results.published import published
from tests.samples import completed, failed, plan, record


def bert(batch: int, seq_len: int, outcome: object, mode: Mode = Mode.TRAINING, cell: int = 0) -> object:
    params = {"batch_size": batch, "seq_len": seq_len, "size": "base", "attention": "sdpa"}
    return record(outcome, cell=cell, plan=plan(workload="bert", params=params, mode=mode))  # type: ignore[arg-type]


def test_the_figures_are_all_there_with_their_sources() -> None:
    assert len([figure for figure in published() if figure.workload == "bert"]) == 48
    assert all(figure.source and figure.note for figure in published())
    assert {figure.workload for figure in published()} == {"bert", "mobilenet-cifar10", "vgg16-flowers"}


def test_ours_stand_beside_theirs_in_their_layout() -> None:
    records = [
        bert(16, 128, completed(0.25)),
        bert(256, 128, failed(FailureKind.OUT_OF_MEMORY), cell=1),
        bert(16, 128, completed(0.05), Mode.INFERENCE, cell=2),
    ]
    training, inference = published_tables(cells_of(records))  # type: ignore[arg-type]
    assert "time for 100 steps" in training.caption
    assert "size base" in training.caption
    assert training.headers[0] == "batch size"
    rows = {row[0]: row for row in training.rows}
    ours, v100 = training.headers.index("torch cpu: Test chip"), training.headers.index("NVIDIA V100 SXM2 16GB *")
    assert rows["16"][ours] == "25.0"
    assert rows["16"][v100] == "12"
    assert rows["256"][ours] == "-"
    assert rows["256"][v100] == "-"
    assert "no synchronisation" in " ".join(training.notes)
    assert inference.rows[0][inference.headers.index("NVIDIA V100 SXM2 16GB *")] == "4"


def test_another_size_has_no_published_figures_beside_it() -> None:
    params = {"batch_size": 16, "seq_len": 128, "size": "tiny", "attention": "sdpa"}
    (table,) = published_tables(cells_of([record(plan=plan(workload="bert", params=params))]))
    assert all(value == "" for row in table.rows for value in row[-4:])


def test_what_was_never_published_gives_no_table() -> None:
    assert published_tables(cells_of([record()])) == []


def test_times_of_whole_runs_are_not_set_beside_steps() -> None:
    params = {"batch_size": 64, "pixels": 128}
    (table,) = published_tables(cells_of([record(plan=plan(workload="mobilenet-cifar10", params=params))]))
    assert not any("torch" in header for header in table.headers)
    assert "no measured figure" in " ".join(table.notes)
