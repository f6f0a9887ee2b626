"""A sweep for other programs: Markdown to paste, CSV with plain numbers, JSON with every block."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from metalmark.codec import encode_export
from metalmark.plan import word
from metalmark.record import Record
from metalmark.report.cells import Cell
from metalmark.report.table import Table
from metalmark.scrub import printable

LEAD = ("workload", "mode", "framework", "device", "data", "placed_on")
FIGURES = (
    "outcome", "processes", "blocks", "step_s", "low_s", "high_s", "interval_over", "samples_per_s", "first_step_s",
    "peak_bytes", "process_bytes", "data_from", "workers", "prefetch", "waiting_share", "proof", "flags", "message",
)  # fmt: skip


def markdown(table: Table) -> str:
    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(_escape(value) for value in values) + " |"

    rule = "|" + "|".join(" ---: " if numeric else " --- " for numeric in table.numeric) + "|"
    rows = [line(table.headers), rule, *(line(row) for row in table.rows)]
    notes = [f"- {_escape(note)}" for note in table.notes]
    return "\n".join([f"**{_escape(table.caption)}**", "", *rows, *([""] if notes else []), *notes]) + "\n"


def comma_separated(cells: Sequence[Cell]) -> str:
    params = list(dict.fromkeys(name for cell in cells for name in cell.plan.params))
    settings = cells[0].plan.settings.__struct_fields__ if cells else ()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*LEAD, *params, *settings, *FIGURES])
    for cell in cells:
        plan, failure = cell.plan, cell.failure
        row: list[object] = [plan.workload, plan.mode.value, plan.framework, plan.device, plan.data]
        row += [cell.completed[0].placed_on if cell.completed else ""]
        row += [word(plan.params[name]) if name in plan.params else "" for name in params]
        row += [word(getattr(plan.settings, name)) for name in settings]
        if failure:
            row += [failure.kind.value, len(cell.records), *[""] * 8, *_feed(cell), "", "", failure.message]
        else:
            interval = cell.interval
            row += ["completed", len(cell.completed), sum(map(len, cell.step_times)), cell.step_s]
            row += [interval.low, interval.high, interval.over] if interval else ["", "", ""]
            row += [cell.samples_s, cell.first_step_s, cell.peak_bytes, cell.process_bytes]
            row += [*_feed(cell), cell.completed[0].proof.statement, " ".join(cell.flags), ""]
        writer.writerow(["" if value is None else _cell(value) for value in row])
    return out.getvalue()


def _feed(cell: Cell) -> list[object]:
    loader = cell.plan.loader
    ahead: list[object] = [loader.workers, loader.prefetch] if loader else ["", ""]
    return [cell.plan.feed.value, *ahead, cell.waiting_share]


def json_text(records: Sequence[Record]) -> str:
    return encode_export(list(records)).decode()


def _cell(value: object) -> object:
    """A spreadsheet runs what begins like a formula; a message or a file's name may."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in "=+-@" and text[:1] else text


def _escape(text: str) -> str:
    plain = printable(text).replace("\n", " ")
    for sign in "\\|`*_<>[]":
        plain = plain.replace(sign, "\\" + sign)
    return plain
