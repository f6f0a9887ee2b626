"""A sweep for other programs: Markdown to paste, CSV with plain numbers, JSON with every block."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import word
from metalmark.report.table import Table
from metalmark.results.cells import Cell
from metalmark.results.derived import Cost, Derived, Utilisation, derive
from metalmark.scrub import printable
from metalmark.stats.summary import median

LEAD = ("workload", "mode", "framework", "device", "data", "placed_on")
FIGURES = (
    "outcome", "processes", "blocks", "step_s", "low_s", "high_s", "interval_over", "samples_per_s", "first_step_s",
    "peak_bytes", "process_bytes", "data_from", "workers", "prefetch", "waiting_share", "proof", "flags", "message",
)  # fmt: skip
DERIVED: dict[str, Callable[[Derived], object]] = {
    "utilisation_percent": lambda d: d.utilisation.percent if isinstance(d.utilisation, Utilisation) else None,
    "average_w": lambda d: d.energy.average_w if isinstance(d.energy, Cost) else None,
    "peak_w": lambda d: d.energy.peak_w if isinstance(d.energy, Cost) else None,
    "joules_per_step": lambda d: d.energy.joules_per_step if isinstance(d.energy, Cost) else None,
    "joules_per_sample": lambda d: d.energy.joules_per_sample if isinstance(d.energy, Cost) else None,
    "samples_per_joule": lambda d: d.energy.samples_per_joule if isinstance(d.energy, Cost) else None,
    "energy_of": lambda d: d.energy.part if isinstance(d.energy, Cost) else None,
    "energy_source": lambda d: d.energy.source if isinstance(d.energy, Cost) else None,
    "growth_bytes_per_1000_steps": lambda d: d.growth[0].bytes_per_1000_steps if isinstance(d.growth, tuple) else None,
    "swapped_in_bytes": lambda d: d.swapped_in_bytes,
    "swapped_out_bytes": lambda d: d.swapped_out_bytes,
    "flops_per_s": lambda d: d.flops_per_s,
    "last_tenth_to_first": lambda d: d.last_tenth_to_first,
}
"""Of several processes the median; why one is not there stands in --json and `runs show`."""


def markdown(table: Table) -> str:
    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(escaped(value) for value in values) + " |"

    rule = "|" + "|".join(" ---: " if numeric else " --- " for numeric in table.numeric) + "|"
    rows = [line(table.headers), rule, *(line(row) for row in table.rows)]
    notes = [f"- {escaped(note)}" for note in table.notes]
    return "\n".join([f"**{escaped(table.caption)}**", "", *rows, *([""] if notes else []), *notes]) + "\n"


def comma_separated(cells: Sequence[Cell]) -> str:
    params = list(dict.fromkeys(name for cell in cells for name in cell.plan.params))
    settings = cells[0].plan.settings.__struct_fields__ if cells else ()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*LEAD, *params, *settings, *FIGURES, *DERIVED])
    for cell in cells:
        plan, failure = cell.plan, cell.failure
        row: list[object] = [plan.workload, plan.mode.value, plan.framework, plan.device, plan.data]
        row += [cell.completed[0].placed_on if cell.completed else ""]
        row += [word(plan.params[name]) if name in plan.params else "" for name in params]
        row += [word(getattr(plan.settings, name)) for name in settings]
        if failure:
            row += [failure.kind.value, len(cell.records), *[""] * 9, *_feed(cell), "", "", failure.message]
        else:
            interval = cell.interval
            row += ["completed", len(cell.completed), sum(map(len, cell.step_times)), cell.step_s]
            row += [interval.low, interval.high, interval.over] if interval else ["", "", ""]
            row += [cell.samples_s, cell.first_step_s, cell.peak_bytes, cell.process_bytes]
            row += [*_feed(cell), cell.completed[0].proof.statement, " ".join(cell.flags), ""]
        row += [None] * len(DERIVED) if failure else _derived(cell)
        writer.writerow(["" if value is None else spreadsheet(value) for value in row])
    return out.getvalue()


def _derived(cell: Cell) -> list[object]:
    figures = [derived for derived in map(derive, cell.records) if derived is not None]
    row: list[object] = []
    for ask in DERIVED.values():
        known = [value for value in map(ask, figures) if isinstance(value, int | float | str)]
        numbers = [value for value in known if not isinstance(value, str)]
        row.append(median(numbers) if numbers else " ".join(dict.fromkeys(map(str, known))) or None)
    return row


def _feed(cell: Cell) -> list[object]:
    loader = cell.plan.loader
    ahead: list[object] = [loader.workers, loader.prefetch] if loader else ["", ""]
    return [cell.plan.feed.value, *ahead, cell.waiting_share]


def json_text(records: Sequence[BenchRun]) -> str:
    """With each record's derived figures beside the records, where nobody takes them for readings."""
    derived = {record.id: derive(record) for record in records}
    return encode_export(list(records), {name: figures for name, figures in derived.items() if figures}).decode()


def spreadsheet(value: object) -> object:
    """A spreadsheet runs what begins like a formula; a message or a file's name may."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in "=+-@" and text[:1] else text


def escaped(text: str) -> str:
    plain = printable(text).replace("\n", " ")
    for sign in "\\|`*_<>[]":
        plain = plain.replace(sign, "\\" + sign)
    return plain
