"""A Table in a terminal: legible without colour, and as wide as the window."""

import re
from dataclasses import replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from metalmark.report.text.tables import TEXTS, Table
from metalmark.report.text.width import WIDE, fit, left_out, moved, window_columns, wrapped
from metalmark.scrub import printable

COMMAND = re.compile(r"(?<=:) (?=metalmark )")
"""Where a line to type begins in a note. It stays one line, however long, to be copied."""


def fitted(table: Table, columns: int) -> Table:
    """Return the table as it fits so many columns: without those it can best be read without, which a note names."""
    if columns >= WIDE:
        return table
    texts = [[printable(value) for value in row] for row in table.rows]
    # A column without a value in any row is missed least of all.
    drop = sorted(table.drop, key=lambda name: any(row[at] for row in table.rows for at in _places(table, name)))
    found = fit(table.headers, texts, columns, drop=drop, wraps={"flags"})
    rows = [moved(row, table.headers, found.dropped, table.moves) for row in table.rows]
    if any(row != [*before] for row, before in zip(rows, table.rows, strict=True)):
        # A word that moved may be wider than what it replaced.
        texts = [[printable(value) for value in row] for row in rows]
        found = fit(table.headers, texts, columns, drop=drop, wraps={"flags"})
    values = {name: {row[table.headers.index(name)] for row in table.rows} for name in found.dropped}
    said = {name: next(iter(found)) for name, found in values.items() if len(found) == 1 and len(table.rows) > 1}
    note = left_out([f"{name} ({said[name]} in each row)" if said.get(name) else name for name in values])
    return replace(
        table,
        headers=found.headers,
        numeric=tuple(table.numeric[at] for at in found.columns),
        rows=tuple(tuple(row[at] for at in found.columns) for row in rows),
        notes=(*([note] if note else ()), *table.notes),
    )


def render(table: Table, columns: int = WIDE) -> RenderableType:
    """Draw the table; one that is still too wide for `columns` wraps its texts, never its figures."""
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="bold")
    tight = columns < WIDE and _width(table) > columns
    for header, numeric in zip(table.headers, table.numeric, strict=True):
        wraps = header in TEXTS or (tight and not numeric)
        grid.add_column(header, justify="right" if numeric else "left", no_wrap=not wraps, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(printable(value)) for value in row))
    return Group(Text(printable(table.caption), style="bold"), grid)


def print_note(note: str, console: Console) -> None:
    """Print a sentence below a table, broken between words."""
    for line in _note_lines(printable(note), console.width):
        console.print(Text(line), soft_wrap=True)


def print_table(table: Table, console: Console | None = None) -> None:
    console = console or wide_console()
    shown = fitted(table, console.width)
    console.print(render(shown, console.width))
    for note in shown.notes:
        print_note(note, console)
    for line in shown.lines:
        console.print(Text(printable(line)), soft_wrap=True)


def wide_console(*, wide: bool = False) -> Console:
    """A console on stdout, as wide as the window. `wide`, and in a file or a pipe, nothing is cut to a window."""
    return Console(highlight=False, soft_wrap=False, width=WIDE if wide else window_columns())


def _places(table: Table, name: str) -> list[int]:
    return [at for at, header in enumerate(table.headers) if header == name]


def _width(table: Table) -> int:
    rows = [table.headers, *table.rows]
    longest = [max(len(line) for row in rows for line in row[at].split("\n")) for at in range(len(table.headers))]
    return sum(longest) + 3 * (len(longest) - 1) + 2


def _note_lines(note: str, columns: int) -> list[str]:
    if columns >= WIDE:
        return [f"• {note}"]
    said, *commands = COMMAND.split(note, maxsplit=1)
    return [wrapped(f"• {said}", columns), *(f"  {command}" for command in commands)]
