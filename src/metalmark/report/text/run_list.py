"""`runs list`: one table for runs of every kind.

It is made from the store's columns and without rich, so that a thousand runs list at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import msgspec

from metalmark.model.parity import ParityVerdict
from metalmark.model.run import PARITY_FAILED, RunKind
from metalmark.report.text.units import count, figures, moment, percent, seconds, share
from metalmark.report.text.width import WIDE, fit, left_out
from metalmark.scrub import printable


class Spacing(TypedDict):
    """How columns of plain text stand: two spaces apart, each header on one line."""

    between: int
    edges: int
    breaks: bool


if TYPE_CHECKING:
    from metalmark.store.row import Row

HEADERS = (
    "id", "kind", "started (UTC)", "what", "framework", "device", "batch", "dtype", "result", "ending", "names",
)  # fmt: skip

DROP = ("dtype", "kind", "ending", "batch", "started (UTC)", "names", "device", "framework")
"""What a narrow window does without, those first that are missed least."""
PLAIN: Spacing = {"between": 2, "edges": 0, "breaks": False}

Names = Mapping[str, Sequence[str]]
"""The names of each run and sweep that has some, by id."""
NO_NAMES: Names = {}


def run_rows_text(rows: "Sequence[Row]", names: Names = NO_NAMES, *, width: int = WIDE) -> tuple[str, str]:
    """Return the list as it fits `width` columns, and a line that names what does not; empty where everything does."""
    lines = [list_line(row, names) for row in rows]
    # Where no run has a name, nobody misses the column.
    shown = len(HEADERS) - (not any(line[-1] for line in lines))
    headers, lines = HEADERS[:shown], [line[:shown] for line in lines]
    if width >= WIDE or not fit(headers, lines, width, drop=DROP, **PLAIN).dropped:
        return columns(headers, lines, {"batch"}), ""
    # What came of a run is shown by its first figure alone before where it ran is left out.
    brief = [list_line(row, names, brief=True)[:shown] for row in rows]
    more = ["more of each result"] if brief != lines else []
    return fitted_columns(headers, brief, {"batch"}, drop=DROP, width=width, also=more)


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
    if row.kind == RunKind.WATCH or (row.kind == RunKind.EXPLAIN and not row.workload):
        return row.name
    return row.workload if row.kind == RunKind.TRAINING else f"{row.workload} {row.mode}"


def result_of(row: "Row", *, brief: bool = False) -> str:
    """What came of the run, in the figures of its kind; empty where nothing did. `brief`: the first of them, or else
    how it ended."""
    parts = (
        "" if row.accuracy is None else f"{percent(row.accuracy)} in {count(row.epochs or 0, 'epoch')}",
        count(row.epochs, "epoch") if row.accuracy is None and row.epochs else "",
        "" if row.steps is None else count(row.steps, "step"),
        "" if row.step_s is None else f"{seconds(row.step_s)} per step",
        "" if row.samples_s is None else f"{figures(row.samples_s)} samples/s",
        "" if row.input_share is None else f"input wait {share(row.input_share)}",
    )
    if row.kind == RunKind.PARITY:
        return row.parity or (row.ending if brief else "")
    known = [*filter(None, parts)]
    if brief:
        known = known[:1] or [row.ending]
        # Of an explanation the verdict, and of a tuning the gain, comes before any figure.
        told = row.kind in (RunKind.EXPLAIN, RunKind.TUNE) and row.step_s is not None
        known = [row.ending, *known] if told else known
    # A speed or an accuracy that is not that of the same network is never shown without the mark.
    return ", ".join([*known, *([PARITY_FAILED] if row.parity == ParityVerdict.DIFFERS else [])])


def fitted_columns(
    headers: Sequence[str],
    lines: Sequence[Sequence[str]],
    numeric: Collection[str] = (),
    *,
    drop: Sequence[str] = (),
    width: int = WIDE,
    also: Sequence[str] = (),
) -> tuple[str, str]:
    """Return lines under headers, aligned by spaces, the columns named in `numeric` to the right; and a line that names
    the columns of `drop` that do not fit, and what else is left out."""
    if width < WIDE:
        found = fit(headers, lines, width, drop=drop, **PLAIN)
        headers, lines = found.headers, [[line[at] for at in found.columns] for line in lines]
        return columns(headers, lines, numeric), left_out([*found.dropped, *also])
    return columns(headers, lines, numeric), ""


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


def list_line(row: "Row", names: Names = NO_NAMES, *, brief: bool = False) -> tuple[str, ...]:
    values = (
        row.id, row.kind, moment(row.started_at), what_ran(row), row.framework, row.device,
        "" if row.batch_size is None else str(row.batch_size), row.dtype, result_of(row, brief=brief), row.ending,
        ", ".join(names_of(row, names)),
    )  # fmt: skip
    return tuple(printable(value).replace("\n", " ").replace("\t", " ") for value in values)
