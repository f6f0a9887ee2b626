"""What a bad data file is called: which file, what is wrong with it, and what to do next."""

from __future__ import annotations

import hashlib
from pathlib import Path

from metalmark.errors import FormatError
from metalmark.scrub import printable

REPLACE = "Replace it with the official file, or let --data real fetch one."


def damaged(name: str, kind: str, why: str, *, hint: str = REPLACE) -> FormatError:
    """`name` may come from inside an archive, so it is cleaned before a terminal sees it."""
    return FormatError(f"{printable(name)} can't be read as {kind}: {printable(why)}.", hint=hint)


def unreadable(path: Path, error: OSError) -> FormatError:
    why = error.strerror or type(error).__name__
    return FormatError(f"{printable(str(path))} can't be read: {why}.", hint="Check its place and its permissions.")


def read_bounded(path: Path, kind: str, most_bytes: int) -> bytes:
    """The whole file, unless it is far larger than any file of its kind."""
    try:
        with path.open("rb") as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > most_bytes:
        raise damaged(str(path), kind, f"it is larger than {most_bytes:,} bytes, and no such file is")
    return data


def md5_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def md5_of_bytes(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
