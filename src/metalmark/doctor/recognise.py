"""An error's text → what is known of it, the likeliest cause first, each with the line that says so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from metalmark.doctor.known.base import KnownError, Weight
from metalmark.doctor.known_errors import KNOWN
from metalmark.scrub import scrub

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
