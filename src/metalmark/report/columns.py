"""Lines of words under headers, aligned by spaces: what a list command prints."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(headers: Sequence[str], lines: Sequence[Sequence[str]], numeric: Collection[str]) -> str:
    """`numeric`: the headers whose column is aligned to the right."""
    every = [headers, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(headers))]
    return "\n".join(
        "  ".join(
            value.rjust(width) if header in numeric else value.ljust(width)
            for value, width, header in zip(line, widths, headers, strict=True)
        ).rstrip()
        for line in every
    )
