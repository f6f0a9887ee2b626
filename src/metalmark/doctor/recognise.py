"""Read the text of an error and say what is known of it, the likeliest cause first, each with the line that shows it.

The text is given as it is, in a file, or on standard input. However long it is, little of it is held in memory.
"""

import os
import re
import sys
import tomllib
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from metalmark.errors import UsageError
from metalmark.scrub import scrub

KNOWN_ERRORS = Path(__file__).with_name("known_errors.toml")
HEAD_CHARS = 64 * 1024
TAIL_CHARS = 256 * 1024
"""The middle of a longer text is left out: an error is where it began or where it ended."""
LINE_CHARS = 2000
EVIDENCE_CHARS = 240

_STDIN = "-"
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
"""A stream is read no further than this: it may never end."""
_ENDINGS = (".txt", ".log", ".out", ".err")
_HINT = 'Give the text itself in quotes, a file that holds it, or - for standard input: metalmark doctor --for "..."'
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Typographic quotes come with text from chats and word processors.
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " "})


class Weight(IntEnum):
    """How likely an error is the cause of what the user sees: the first is shown first."""

    CAUSE = 0
    CONSEQUENCE = 1
    """It follows from something else, which may be in the same text."""
    REMARK = 2
    """A warning that healthy runs print too."""


class KnownError(Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """One entry of `known_errors.toml`, whose first lines describe the fields."""

    name: str
    patterns: tuple[str, ...]
    happened: str
    change: str
    fix: tuple[str, ...] = ()
    source: str
    weight: Weight = Weight.CAUSE

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile("|".join(self.patterns).replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)


class Match(Struct, frozen=True, kw_only=True):
    """One known error, found in a text."""

    name: str
    evidence: str
    """The line that shows it, with paths and names removed."""
    line: int
    """Its number, from 1, in the text as it was searched."""
    happened: str
    change: str
    fix: tuple[str, ...]
    source: str
    weight: Weight


@cache
def known_errors() -> tuple[KnownError, ...]:
    return tuple(map(_known_error, tomllib.loads(KNOWN_ERRORS.read_text(encoding="utf-8"))["errors"]))


def recognise(text: str, known: Sequence[KnownError] | None = None) -> list[Match]:
    """Return causes before what follows from them; of equals the first in the text, since a later one may follow."""
    clean = legible(text)
    matches: list[Match] = []
    for error in known_errors() if known is None else known:
        match = error.expression.search(clean)
        if match is not None:
            matches.append(_match(error, clean, match))
    return sorted(matches, key=lambda match: (match.weight, match.line))


def legible(text: str) -> str:
    """Return the text without colours and control characters, and no longer than can be searched in a moment."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    text = _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))).translate(_QUOTES)
    # The beginning and the end of a long line: a progress bar's thousand updates are one line.
    half = LINE_CHARS // 2
    return "\n".join(line if len(line) <= LINE_CHARS else f"{line[:half]} {line[-half:]}" for line in text.split("\n"))


def read_error(source: str) -> str:
    """Return the text of an error."""
    if source == _STDIN:
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
    elif source.split() == [source] and ("/" in source or source.endswith(_ENDINGS)):
        # It was meant as a file, and reading it as an error's text would answer another question.
        raise UsageError(f"There is no file {source}.", hint=_HINT)
    else:
        text = source
    if not text.strip():
        raise UsageError("The error's text is empty.", hint=_HINT)
    return text


def decode(data: bytes) -> str:
    """Decode UTF-16, which Windows' PowerShell writes into its logs; all else is read as UTF-8, whatever is in it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace")


def _known_error(entry: dict[str, Any]) -> KnownError:
    prose = {field: " ".join(entry[field].split()) for field in ("happened", "change")}
    weight = Weight[entry.get("weight", Weight.CAUSE.name).upper()]
    return msgspec.convert({**entry, **prose, "weight": weight}, KnownError)


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


def _read(stream: BinaryIO) -> str:
    """Return the beginning and the end of a stream; what lies between is read and dropped."""
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
