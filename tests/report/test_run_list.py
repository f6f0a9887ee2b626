"""`runs list`: one table for every kind of run."""

from __future__ import annotations

import json
from pathlib import Path

from metalmark.report.text.run_list import run_rows_json, run_rows_text
from metalmark.store.row import row_of
from tests.report.contents import training, watched
from tests.samples import completed, failed, record

ROWS = [
    row_of(record(completed(0.1), id="bench00001")),
    row_of(record(failed(), id="bench00002")),
    row_of(training(), Path("/somewhere/mine")),
    row_of(watched()),
]


def test_every_kind_is_a_line_with_the_figures_of_its_kind() -> None:
    header, *lines = run_rows_text(ROWS, {"bench00001": ["main"], "sweep00001": ["all"]})[0].splitlines()
    assert header.split() == ["id", "kind", "started", "(UTC)", "what", "framework", "device", "batch", "dtype",
                              "result", "ending", "names"]  # fmt: skip
    bench, lost, trained, loop = lines
    assert "bench" in bench
    assert "100 ms per step, 320 samples/s" in bench
    assert bench.endswith("main, all")
    assert "out of memory" in lost
    assert "per step" not in lost
    assert "83.33% in 3 epochs" in trained
    assert trained.endswith("mine"), "a training goes by the name of its folder"
    assert "5 steps, 400 ms per step, input wait 25.0%" in loop
    assert len({line.index(row.ending) for line, row in zip(lines, ROWS, strict=True)}) == 1, "columns are aligned"


def test_without_names_there_is_no_column_for_them() -> None:
    assert "names" not in run_rows_text(ROWS[:2])[0]


def test_programs_get_every_column_of_every_kind() -> None:
    entries = json.loads(run_rows_json(ROWS, {"bench00001": ["main"]}))
    assert [entry["kind"] for entry in entries] == ["bench", "bench", "training", "watch"]
    assert len({frozenset(entry) for entry in entries}) == 1
    assert entries[0]["names"] == ["main"]
    assert entries[2]["folder"] == "/somewhere/mine"
    assert entries[3]["input_share"] == 0.25
