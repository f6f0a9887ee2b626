"""`runs list`: one table for runs of every kind.

It is made from the store's columns and without rich, so that a thousand runs list at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from metalmark.model.run import RunKind
from metalmark.report.text.units import count, figures, moment, percent, seconds, share
from metalmark.scrub import printable

if TYPE_CHECKING:
    from metalmark.store.row import Row

HEADERS = (
    "id", "kind", "started (UTC)", "what", "framework", "device", "batch", "dtype", "result", "ending", "names",
)  # fmt: skip

Names = Mapping[str, Sequence[str]]
"""The names of each run and sweep that has some, by id."""
NO_NAMES: Names = {}


def run_rows_text(rows: "Sequence[Row]", names: Names = NO_NAMES) -> str:
    lines = [list_line(row, names) for row in rows]
    # Where no run has a name, nobody misses the column.
    shown = len(HEADERS) - (not any(line[-1] for line in lines))
    return columns(HEADERS[:shown], [line[:shown] for line in lines], {"batch"})


def run_rows_json(rows: "Sequence[Row]", names: Names = NO_NAMES) -> str:
    # The folder of a training may be any bytes: those that are not text are shown by their codes.
    folders = [None if row.folder is None else row.folder.decode(errors="backslashreplace") for row in rows]
    entries = [
        {**msgspec.structs.asdict(row), "folder": folder, "names": names_of(row, names)}
        for row, folder in zip(rows, folders, strict=True)
    ]
    return msgspec.json.format(msgspec.json.encode(entries), indent=2).decode()


def names_of(row: "Row", names: Names) -> list[str]:
    """The names of the run and of its sweep, and that of a training's folder."""
    own = [row.name] if row.name and row.kind == RunKind.TRAINING else []
    return list(dict.fromkeys([*names.get(row.id, ()), *names.get(row.sweep, ()), *own]))


def what_ran(row: "Row") -> str:
    if row.kind == RunKind.WATCH:
        return row.name
    return row.workload if row.kind == RunKind.TRAINING else f"{row.workload} {row.mode}"


def result_of(row: "Row") -> str:
    """What came of the run, in the figures of its kind; empty where nothing did."""
    parts = (
        "" if row.accuracy is None else f"{percent(row.accuracy)} in {count(row.epochs or 0, 'epoch')}",
        count(row.epochs, "epoch") if row.accuracy is None and row.epochs else "",
        "" if row.steps is None else count(row.steps, "step"),
        "" if row.step_s is None else f"{seconds(row.step_s)} per step",
        "" if row.samples_s is None else f"{figures(row.samples_s)} samples/s",
        "" if row.input_share is None else f"input wait {share(row.input_share)}",
    )
    return ", ".join(filter(None, parts))


def columns(headers: Sequence[str], lines: Sequence[Sequence[str]], numeric: Collection[str] = ()) -> str:
    """Lines under headers, aligned by spaces; the columns named in `numeric` to the right."""
    every = [headers, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(headers))]
    return "\n".join(
        "  ".join(
            value.rjust(width) if header in numeric else value.ljust(width)
            for value, width, header in zip(line, widths, headers, strict=True)
        ).rstrip()
        for line in every
    )


def list_line(row: "Row", names: Names = NO_NAMES) -> tuple[str, ...]:
    values = (
        row.id, row.kind, moment(row.started_at), what_ran(row), row.framework, row.device,
        "" if row.batch_size is None else str(row.batch_size), row.dtype, result_of(row), row.ending,
        ", ".join(names_of(row, names)),
    )  # fmt: skip
    return tuple(printable(value).replace("\n", " ").replace("\t", " ") for value in values)
