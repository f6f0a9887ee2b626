"""The forms that need no browser: what is pasted, and what programs read."""

from __future__ import annotations

import csv
import io
import json

import pytest

from metalmark.errors import UsageError
from metalmark.model.codec import decode_export
from metalmark.report.content import Content
from metalmark.report.text.exports import (
    BLOCKS,
    EPOCHS,
    block_rows,
    csv_text,
    epoch_rows,
    json_text,
    markdown_text,
    parquet_bytes,
)
from tests.report.contents import HOSTILE, everything, records, training, watched


def test_markdown_holds_tables_reasons_and_machine() -> None:
    text = markdown_text(everything())
    assert "| torch | cpu |" in text
    assert "crashed" in text
    assert "mlx gpu not run" in text
    assert "| epoch | train loss |" in text
    assert "chip: Test chip" in text
    assert "<script>" not in text, "Markdown passes HTML through"
    assert "\\<script\\>" in text


def test_csv_is_a_line_a_cell_or_a_line_an_epoch() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(Content(runs=tuple(records()))))))
    assert len(rows) == 7
    assert rows[0]["batch_size"] == "4"
    epochs = list(csv.DictReader(io.StringIO(csv_text(Content(runs=(training(),))))))
    assert [row["epoch"] for row in epochs] == ["1", "2", "3"]
    assert float(epochs[2]["accuracy"]) == pytest.approx(1 - 0.5 / 3)


def test_json_can_be_imported_again() -> None:
    found = everything()
    text = json_text(found.runs)
    assert decode_export(text.encode(), source="report") == list(found.runs)
    document = json.loads(text)
    assert [one["id"] for one in document["records"] if one["kind"] == "training"] == ["trained0001", "trained0002"]
    assert document["records"][-1]["name"] == f"loop {HOSTILE[0]}"
    assert document["derived"]["torch0004000"]["flops_per_s"] > 0


def test_rows_have_the_columns_they_say_and_no_others() -> None:
    blocks, epochs = list(block_rows(records())), list(epoch_rows([training(), training("none000000", epochs=0)]))
    assert all(list(row) == list(BLOCKS) for row in blocks)
    assert all(list(row) == list(EPOCHS) for row in epochs)
    assert len(blocks) == 6 * (20 + 1) + 1, "warm-up and measured blocks, and one for what failed"
    assert sum(row["warm_up"] is True for row in blocks) == 6
    assert blocks[-1]["outcome"] == "crashed"
    assert blocks[-1]["step_s"] is None
    assert len(epochs) == 4


def test_parquet_reads_back_as_it_was_measured() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(parquet_bytes(Content(runs=tuple(records())))))
    assert table.num_rows == 127
    assert table.schema.metadata[b"format"] == b"metalmark-records, a row per block"
    measured = [row for row in table.to_pylist() if row["run"] == "torch0032000" and not row["warm_up"]]
    assert len(measured) == 20
    assert measured[0]["samples_per_s"] == pytest.approx(32 / measured[0]["step_s"])
    assert json.loads(measured[0]["params"]) == {"batch_size": 32}
    own = parquet.read_table(io.BytesIO(parquet_bytes(Content(runs=(training(),)))))
    assert own.column("epoch").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("form", [csv_text, parquet_bytes], ids=["csv", "parquet"])
def test_what_is_no_one_table_is_refused(form: object) -> None:
    if form is parquet_bytes:
        pytest.importorskip("pyarrow")
    for content in (Content(runs=(*records(), training())), Content(runs=(watched(),))):
        with pytest.raises(UsageError) as raised:
            form(content)  # type: ignore[operator]
        assert "--format json" in raised.value.hint
