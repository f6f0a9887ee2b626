"""A language model is counted in tokens: in the table, on the page of a run, in a log's line, in CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest

from metalmark.display.status import result_line
from metalmark.model.measurement import BenchRun
from metalmark.report.text.exports import comma_separated, json_text
from metalmark.report.text.run_page import run_page
from metalmark.report.text.tables import sweep_table
from metalmark.results.cells import cells_of
from tests.samples import completed, failed, plan, record


def spoken() -> BenchRun:
    return record(completed(0.1, samples=12, tokens_per_sample=128), plan=plan(workload="gpt"))


def test_tokens_stand_where_samples_stood() -> None:
    table = sweep_table(cells_of([spoken(), record(failed(), cell=1, plan=plan(workload="gpt"))]))
    assert "samples/s" not in table.headers
    where = table.headers.index("tokens/s")
    assert table.numeric[where]
    assert [row[where] for row in table.rows] == ["15,360", "-"]


def test_beside_a_network_without_tokens_both_are_shown() -> None:
    table = sweep_table(cells_of([spoken(), record(completed(0.1, samples=32), cell=1)]))
    first, second = (dict(zip(table.headers, row, strict=True)) for row in table.rows)
    assert (first["samples/s"], first["tokens/s"]) == ("120", "15,360")
    assert (second["samples/s"], second["tokens/s"]) == ("320", "")
    assert "tokens/s" not in sweep_table(cells_of([record(completed())])).headers


def test_page_line_csv_and_json_have_them() -> None:
    run = spoken()
    page = run_page([run])
    assert "120 samples/s, 15,360 tokens/s" in page
    assert "128 tokens per sample" in page
    assert result_line(run).endswith("15,360 tokens/s")
    (row,) = csv.DictReader(io.StringIO(comma_separated(cells_of([run]))))
    assert float(row["tokens_per_s"]) == pytest.approx(15360)
    assert json.loads(json_text([run]))["derived"][run.id]["tokens_per_s"] == pytest.approx(15360)
    assert "tokens_per_s" not in comma_separated(cells_of([record(completed())]))
