"""`runs list`: read from the store's columns and set by hand, since a thousand records must list at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from metalmark.report.columns import columns
from metalmark.report.units import figures, moment, seconds
from metalmark.scrub import printable

if TYPE_CHECKING:
    from metalmark.store.sqlite import Row

HEADERS = (
    "id",
    "sweep",
    "when (UTC)",
    "workload",
    "mode",
    "batch",
    "dtype",
    "framework",
    "device",
    "step",
    "samples/s",
)
NUMERIC = {"batch", "step", "samples/s"}

Names = Mapping[str, Sequence[str]]
NONE: Names = {}


def rows_text(rows: Sequence[Row], names: Names = NONE) -> str:
    """`names`: of records and of sweeps; a column only where a row has one."""
    shown = [printable(", ".join(names_of(row, names))) for row in rows]
    headers = (*HEADERS, "name") if any(shown) else HEADERS
    lines = [(*_line(row), *([name] if any(shown) else [])) for row, name in zip(rows, shown, strict=True)]
    return columns(headers, lines, NUMERIC)


def rows_json(rows: Sequence[Row], names: Names = NONE, *, more: Sequence[dict[str, Any]] = ()) -> str:
    """`more`: entries of another kind, which stand behind the records."""
    entries = [{"kind": "record", **msgspec.structs.asdict(row), "names": names_of(row, names)} for row in rows]
    entries += more
    return msgspec.json.format(msgspec.json.encode(entries), indent=2).decode()


def names_of(row: Row, names: Names) -> list[str]:
    return list(dict.fromkeys([*names.get(row.id, ()), *names.get(row.sweep, ())]))


def _line(row: Row) -> tuple[str, ...]:
    failed = row.step_s is None
    values = (
        row.id,
        row.sweep,
        moment(row.started_at),
        row.workload,
        row.mode,
        "" if row.batch_size is None else str(row.batch_size),
        row.dtype,
        row.framework,
        row.device,
        row.outcome if failed else seconds(row.step_s or 0.0),
        "-" if failed else figures(row.samples_s or 0.0),
    )
    return tuple(printable(value) for value in values)
