"""A Table in a terminal: legible without colour, and as wide as the window."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from metalmark.report.text.tables import TEXTS, Table
from metalmark.scrub import printable


def render(table: Table) -> RenderableType:
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=None, header_style="bold")
    for header, numeric in zip(table.headers, table.numeric, strict=True):
        grid.add_column(header, justify="right" if numeric else "left", no_wrap=header not in TEXTS)
    for row in table.rows:
        grid.add_row(*(Text(printable(value)) for value in row))
    return Group(Text(printable(table.caption), style="bold"), grid)


def print_table(table: Table, console: Console | None = None) -> None:
    console = console or wide_console()
    console.print(render(table))
    for note in table.notes:
        console.print(Text(f"• {printable(note)}"), soft_wrap=True)
    for line in table.lines:
        console.print(Text(printable(line)), soft_wrap=True)


def wide_console() -> Console:
    """A console on stdout. Where that is a file or a pipe, nothing is cut to the width of a window."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=200)
