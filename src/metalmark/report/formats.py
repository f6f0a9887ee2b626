"""A Content in the forms that need no browser: Markdown to paste, CSV, JSON and Parquet for programs."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from metalmark.errors import NotInstalledError, UsageError
from metalmark.model.codec import FORMAT, encode
from metalmark.model.run import SCHEMA
from metalmark.report.content import Content
from metalmark.report.exports import comma_separated, escaped, markdown, spreadsheet
from metalmark.report.html.facts import machine_facts
from metalmark.report.published_table import published_tables
from metalmark.report.raw_rows import BLOCKS, EPOCHS, block_rows, epoch_rows
from metalmark.report.table import sweep_table
from metalmark.report.training_table import training_table
from metalmark.results.cells import cells_of
from metalmark.results.derived import derive
from metalmark.scrub import scrub

ONE_KIND = "Ask for one kind at a time; --format json and html hold all of them."


def markdown_text(content: Content) -> str:
    """Tables and their notes, and the machine: what one pastes into an issue."""
    parts = [f"## {escaped(content.title)}\n"]
    cells = cells_of(content.records)
    if cells:
        parts.append(markdown(sweep_table(cells)))
        if content.left_out:
            parts.append("".join(f"- {escaped(scrub(line))}\n" for line in content.left_out))
        if content.published:
            parts += [markdown(table) for table in published_tables(cells)]
    parts += [markdown(training_table(record)) for record in content.trainings]
    parts += [f"Watched loop {escaped(run.name)}: {run.ended.value}.\n" for run in content.watched]
    for machine in content.machines:
        facts = "; ".join(f"{fact.name}: {fact.value}" for fact in machine_facts(machine))
        parts.append(f"Machine: {escaped(facts)}.\n")
    return "\n".join(parts)


def csv_text(content: Content) -> str:
    """A line a cell; of trainings a line an epoch."""
    _one_kind(content, "CSV")
    if not content.trainings:
        return comma_separated(cells_of(content.records))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(EPOCHS)
    for row in epoch_rows(content.trainings):
        writer.writerow(["" if value is None else spreadsheet(value) for value in row.values()])
    return out.getvalue()


def json_bytes(content: Content) -> bytes:
    """Every block, and what is derived from it; `metalmark runs import` reads the records in it."""
    derived = {record.id: derive(record) for record in content.records}
    document: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "records": [msgspec.Raw(encode(record)) for record in content.records],
        "derived": {name: figures for name, figures in derived.items() if figures},
    }
    if content.trainings:
        document["trainings"] = content.trainings
    if content.watched:
        document["watched"] = content.watched
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def parquet_bytes(content: Content) -> bytes:
    """A row a block of each run, warm-up marked; of trainings a row an epoch."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NotInstalledError(
            "Parquet needs the extra `parquet`, which is not installed.", hint='pip install "metalmark[parquet]"'
        ) from error
    _one_kind(content, "Parquet")
    columns, rows = (
        (EPOCHS, list(epoch_rows(content.trainings)))
        if content.trainings
        else (BLOCKS, list(block_rows(content.records)))
    )
    schema = pyarrow.schema(
        [(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()],
        metadata={"format": f"{FORMAT}, a row {'an epoch' if content.trainings else 'a block'}", "schema": str(SCHEMA)},
    )
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), out)
    return out.getvalue()


def _one_kind(content: Content, form: str) -> None:
    if content.watched:
        raise UsageError(f"A watched loop has no rows for {form}.", hint=ONE_KIND)
    if content.records and content.trainings:
        raise UsageError(f"Records and trainings are not of one {form} table.", hint=ONE_KIND)
