"""How wide a window is, and which columns of a table fit into it. It needs no rich: a list is there at once."""

import os
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

WIDE = 200
"""Characters per line where no window says how wide it is: in a file and in a pipe."""
LEAST = 40
"""What is narrower is not taken at its word: nothing fits there."""


def window_columns() -> int:
    """Return what COLUMNS says, the width of the terminal, or WIDE in a file or a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return max(int(given), LEAST)
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else WIDE
    except (OSError, ValueError):  # a stream of a program that calls us, which has no number
        columns = WIDE
    # A terminal that was never told its size says 0.
    return max(columns, LEAST) if columns else 80


class Fit(NamedTuple):
    """What of a table fits a window."""

    columns: tuple[int, ...]
    """Places of the columns that are shown."""
    headers: tuple[str, ...]
    """Their headers, on two lines where that makes room."""
    dropped: tuple[str, ...]
    """Headers of the others."""


def fit(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int,
    *,
    drop: Sequence[str] = (),
    wraps: Collection[str] = (),
    between: int = 3,
    edges: int = 2,
    breaks: bool = True,
) -> Fit:
    """Leave columns out, in the order of `drop`, until the others fit.

    Where nothing fits without, headers are on two lines (`breaks`) before any column is left out. Columns in `wraps`
    may have their words on several lines.
    """
    cells = [[row[at] for row in rows] for at in range(len(headers))]
    least = [
        max((len(word) for value in values for word in (value.split() if header in wraps else [value])), default=0)
        for header, values in zip(headers, cells, strict=True)
    ]
    broken = [header.replace(" ", "\n") if breaks else header for header in headers]

    def room(shown: Sequence[int], texts: Sequence[str]) -> int:
        widths = (max(least[at], *map(len, texts[at].split("\n"))) for at in shown)
        return sum(widths) + between * (len(shown) - 1) + edges

    shown, left = [*range(len(headers))], [*drop]
    while left and room(shown, broken) > columns:
        name = left.pop(0)
        shown = [at for at in shown if headers[at] != name]
    # A wide column may have made room for narrow ones that were left out before it.
    for name in reversed(drop):
        again = sorted({*shown, *(at for at, header in enumerate(headers) if header == name)})
        shown = again if room(again, broken) <= columns else shown
    texts = list(headers)
    # Only as many headers are broken as have to be, the longest first.
    for at in sorted(shown, key=lambda at: least[at] - len(headers[at])):
        if room(shown, texts) <= columns:
            break
        texts[at] = broken[at]
    gone = [header for at, header in enumerate(headers) if at not in shown]
    return Fit(tuple(shown), tuple(texts[at] for at in shown), tuple(dict.fromkeys(gone)))


def wrapped(text: str, columns: int) -> str:
    """Break lines that are longer than `columns` between words, what follows indented. A program's output (`| ...`) and
    a line to type stay as they are."""
    lines = []
    for line in text.split("\n"):
        body = line.lstrip()
        if columns >= WIDE or len(line) <= columns or body.startswith(("|", "metalmark ", "pip ")):
            lines.append(line)
            continue
        indent = line[: len(line) - len(body)]
        lines += textwrap.wrap(
            body, columns, initial_indent=indent, subsequent_indent=f"{indent}  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def left_out(dropped: Sequence[str]) -> str:
    """Name the columns that are not shown, in a line."""
    return f"Not shown (use --wide): {', '.join(dropped)}." if dropped else ""


def moved(row: Sequence[str], headers: Sequence[str], dropped: Collection[str], moves: Mapping[str, str]) -> list[str]:
    """Return a row in which a value whose column is left out takes the place of a hyphen in another column."""
    values = dict(zip(headers, row, strict=True))
    return [
        next((values[one] for one, other in moves.items() if other == header and one in dropped), value)
        if value == "-"
        else value
        for header, value in zip(headers, row, strict=True)
    ]
