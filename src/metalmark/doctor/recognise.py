"""Read the text of an error and say what is known of it, the likeliest cause first, each with the line that shows it.

The text is given as it is, in a file, or on standard input. However long it is, little of it is held in memory.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import BinaryIO

from msgspec import Struct

from metalmark.doctor.error_text import ErrorText
from metalmark.doctor.known_errors import FurtherCause, KnownError, Weight, known_errors
from metalmark.doctor.nearest_errors import NearEntry, collectors, nearest_errors
from metalmark.errors import UsageError
from metalmark.scrub import scrub

NEXT_STEPS = (
    "metalmark doctor looks at the machine itself, whatever the error says.",
    "Give the whole output, from its first line: the cause is often far above the last line. python train.py 2>&1 | "
    "metalmark doctor --for -",
    "Run the same step on the CPU with one small batch and no loader workers: messages there name the cause.",
    "metalmark doctor --bundle machine.json writes what a maintainer will ask you for, without names or paths.",
    "Search the framework's issues for the error's own words, without your paths and numbers.",
)
COLLECT = "{command}   prints the versions that its maintainers ask for."
LAST_ERROR_CHARS = 160
HEAD_CHARS = 64 * 1024
TAIL_CHARS = 256 * 1024
"""The middle of a longer text is left out: an error is where it began or where it ended."""
LINE_CHARS = 2000
EVIDENCE_CHARS = 240
REMARK_LINES = 6
"""Who asks about fewer lines asks about the remark in them; in more, it is one of the lines that healthy runs print."""

_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b.*", re.MULTILINE)
_STDIN = "-"
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 256 << 20
"""A stream is read no further than this: it may never end."""
_ENDINGS = (".txt", ".log", ".out", ".err")
_HINT = 'Give the text itself in quotes, a file that holds it, or - for standard input: metalmark doctor --for "..."'
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Typographic quotes come with text from chats and word processors.
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u200b": None, "\ufeff": None})


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
    tell: str | None
    """How to see whether it is this case, where other causes print the same."""
    also: tuple[FurtherCause, ...]
    """Further causes of the same text, likeliest first."""
    holds_for: tuple[str, ...]
    """The versions that it is about, each with those that the text names."""
    source: str
    weight: Weight


class Unrecognised(Struct, frozen=True, kw_only=True):
    """What can be said of a text in which no known error was recognised."""

    recognised: tuple[Match, ...] = ()
    """Always empty: a program that asks for it gets no answer rather than a wrong one."""
    known: int
    """The number of errors that were looked for."""
    last_error: str
    nearest: tuple[NearEntry, ...]
    """Entries that share words with the text. None of them was recognised."""
    next_steps: tuple[str, ...]


def recognise(text: str, known: Sequence[KnownError] | None = None) -> list[Match]:
    """Return causes before what follows from them; of equals first what is about the framework whose files the text
    names, then the first in the text, since a later one may follow from it."""
    searched = ErrorText(text=legible(text))
    found: list[tuple[tuple[int, bool, int], KnownError, re.Match[str]]] = []
    for error in known_errors() if known is None else known:
        match = error.find(searched)
        if match is not None:
            foreign = bool(error.frameworks and searched.frameworks and not error.frameworks & searched.frameworks)
            found.append(((error.weight, foreign, match.start()), error, match))
    found.sort(key=lambda one: one[0])
    errors = [error for _, error, _ in found]
    matches = [_match(error, searched, match) for _, error, match in found if not _outranked(error, errors)]
    if searched.text.count("\n") >= REMARK_LINES and all(match.weight is Weight.REMARK for match in matches):
        return []
    return matches


def unrecognised(text: str, known: Sequence[KnownError] | None = None) -> Unrecognised:
    """Return what to look at next, for a text in which nothing was recognised."""
    errors = known_errors() if known is None else known
    searched = ErrorText(text=legible(text))
    return Unrecognised(
        known=len(errors),
        last_error=last_error(searched.text),
        nearest=tuple(nearest_errors(searched, errors)),
        next_steps=(NEXT_STEPS[0], *(COLLECT.format(command=one) for one in collectors(searched)), *NEXT_STEPS[1:]),
    )


def last_error(text: str) -> str:
    """Return the last line that names an exception, else the last line."""
    lines = _EXCEPTION.findall(text) or [line for line in text.splitlines() if line.strip()] or [""]
    return " ".join(scrub(lines[-1]).split())[:LAST_ERROR_CHARS]


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


def _outranked(error: KnownError, others: Sequence[KnownError]) -> bool:
    """Two that outrank each other, as those of two frameworks may, are both shown."""
    return any(error.name in other.outranks and other.name not in error.outranks for other in others)


def _match(error: KnownError, searched: ErrorText, match: re.Match[str]) -> Match:
    text = searched.text
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
        tell=error.tell,
        also=error.also,
        holds_for=tuple(_range(package, specifier, searched) for package, specifier in error.versions.items()),
        source=error.source,
        weight=error.weight,
    )


def _range(package: str, specifier: str, searched: ErrorText) -> str:
    named = ", ".join(map(str, searched.versions(package)))
    return f"{package} {specifier} ({f'the text names {named}' if named else 'the text names no version of it'})"


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
