"""Read the text of an error and say what is known of it, the likeliest cause first, each with the line that shows it.

The text is given as it is, in a file, or on standard input. However long it is, little of it is held in memory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import BinaryIO

from msgspec import Struct

from metalmark.doctor.known import KnownError, Weight, cuda, host, metal
from metalmark.errors import UsageError
from metalmark.scrub import scrub

KNOWN: tuple[KnownError, ...] = (*metal.ERRORS, *cuda.ERRORS, *host.ERRORS)
"""Every error that `metalmark doctor --for` recognises."""

STDIN = "-"
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
"""Of a stream: one that never ends is left there."""
_ENDINGS = (".txt", ".log", ".out", ".err")
_HINT = 'Give the text itself in quotes, a file that holds it, or - for standard input: metalmark doctor --for "..."'
HEAD_CHARS = 64 * 1024
TAIL_CHARS = 256 * 1024
"""Of a longer text the middle is left out: an error is where it began or where it ended."""
LINE_CHARS = 2000
EVIDENCE_CHARS = 240

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Match(Struct, frozen=True, kw_only=True):
    """One known error, found in a text."""

    name: str
    evidence: str
    """The line that gave it away, paths and names cut out."""
    line: int
    """Its number, from 1, in the text as it was searched."""
    happened: str
    change: str
    fix: tuple[str, ...]
    source: str
    weight: Weight


def recognise(text: str, known: Sequence[KnownError] = KNOWN) -> list[Match]:
    """Causes before what follows from them; of equals the one that came first, since the later may follow from it."""
    clean = legible(text)
    found: list[Match] = []
    for error in known:
        match = error.expression.search(clean)
        if match is not None:
            found.append(_match(error, clean, match))
    return sorted(found, key=lambda match: (match.weight, match.line))


def legible(text: str) -> str:
    """Without colours and control characters, and no longer than can be searched in a moment."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    text = _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    # Typographic quotes come with text from chats and word processors.
    text = text.translate(_QUOTES)
    return "\n".join(_short(line) for line in text.split("\n"))


_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " "})


def _short(line: str) -> str:
    """The beginning and the end: a progress bar's thousand updates are one line."""
    half = LINE_CHARS // 2
    return line if len(line) <= LINE_CHARS else f"{line[:half]} {line[-half:]}"


def _match(error: KnownError, text: str, match: re.Match[str]) -> Match:
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    shown = text[start : end if end >= 0 else len(text)]
    offset = match.start() - start
    if len(shown) > EVIDENCE_CHARS:
        begin = max(0, min(offset - 40, len(shown) - EVIDENCE_CHARS))
        shown = f"{'... ' if begin else ''}{shown[begin : begin + EVIDENCE_CHARS]} ..."
    return Match(
        name=error.name,
        evidence=" ".join(scrub(shown).split()),
        line=text.count("\n", 0, match.start()) + 1,
        happened=error.happened,
        change=error.change,
        fix=error.fix,
        source=error.source,
        weight=error.weight,
    )


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
