"""The text of an error: given as it is, in a file, or on standard input. However much there is, little is held."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from metalmark.doctor.recognise import HEAD_CHARS, TAIL_CHARS
from metalmark.errors import UsageError

STDIN = "-"
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
"""Of a stream: one that never ends is left there."""
_ENDINGS = (".txt", ".log", ".out", ".err")
_HINT = 'Give the text itself in quotes, a file that holds it, or - for standard input: metalmark doctor --for "..."'


def read_error(source: str | None) -> str:
    """None is standard input too."""
    if source is None or source == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("Standard input is a terminal, so there is no error's text on it.", hint=_HINT)
        text = _read(sys.stdin.buffer)
    elif os.path.isdir(source):
        raise UsageError(f"{source} is a folder, not an error's text.", hint=_HINT)
    elif os.path.exists(source):
        try:
            with open(source, "rb") as file:
                text = _read(file)
        except OSError as error:
            raise UsageError(f"{source} can't be read: {error.strerror}.", hint=_HINT) from error
    elif _is_file_name(source):
        raise UsageError(f"There is no file {source}.", hint=_HINT)
    else:
        text = source
    if not text.strip():
        raise UsageError("The error's text is empty.", hint=_HINT)
    return text


def _is_file_name(source: str) -> bool:
    """One word like this was meant as a file, and reading it as an error's text would answer another question."""
    return source.split() == [source] and ("/" in source or source.endswith(_ENDINGS))


def _read(stream: BinaryIO) -> str:
    """The beginning and the end; what lies between is read over."""
    head = stream.read(HEAD_CHARS) or b""
    tail, seen = bytearray(), len(head)
    while seen < _MOST_BYTES:
        chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            break
        seen += len(chunk)
        tail += chunk
        if len(tail) > 2 * TAIL_CHARS:
            del tail[:-TAIL_CHARS]
    return decode(head + bytes(tail[-TAIL_CHARS:]))


def decode(data: bytes) -> str:
    """Windows' PowerShell writes UTF-16 into its logs; all else is read as UTF-8, whatever is in it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")
