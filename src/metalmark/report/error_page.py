"""What is known of an error, for people: what happened, what to change, and where that is from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from metalmark.doctor.recognise import Match, legible
from metalmark.scrub import scrub

WIDTH = 100
MOST = 4
"""More than this in one text is a log to be read, and the first ones are the likeliest."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b.*", re.MULTILINE)
_LINE_CHARS = 160


def error_page(matches: Sequence[Match]) -> str:
    lines: list[str] = []
    for number, match in enumerate(matches[:MOST]):
        lines += ["", *_entry(match)] if number else _entry(match)
    rest = [match.name for match in matches[MOST:]]
    if rest:
        lines += ["", *_words(f"Also in the text: {', '.join(rest)}.", "")]
    return "\n".join(lines)


def unknown_page(text: str, known: int) -> str:
    """When nothing was recognised: what the error seems to be, and what to do next."""
    line = last_error(text)
    lines = _words(f"This is none of the {known} errors that Metalmark knows.", "")
    if line:
        lines.append(f"  its last error: {line}")
    lines += ["", "What to do next:"]
    for step in (
        "metalmark doctor looks at the machine itself, whatever the error says.",
        "Give the whole output, from its first line: the cause is often far above the last line. "
        "python train.py 2>&1 | metalmark doctor --for -",
        "Run the same step on the CPU with one small batch and no loader workers: messages there name the cause.",
        "Search the framework's issues for the error's own words, without your paths and numbers.",
    ):
        lines += textwrap.wrap(step, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def last_error(text: str) -> str:
    """The last line that names an exception, or the last line there is."""
    clean = legible(text)
    named = _EXCEPTION.findall(clean)
    others = [line for line in clean.splitlines() if line.strip()]
    shown = named[-1] if named else others[-1] if others else ""
    return " ".join(scrub(shown).split())[:_LINE_CHARS]


def _entry(match: Match) -> list[str]:
    lines = [match.name, *_words(f"seen in line {match.line}: {match.evidence}", "  ")]
    lines += _words(f"what happened: {match.happened}", "  ")
    lines += _words(f"what to change: {match.change}", "  ")
    lines += [f"      {line}" for line in match.fix]
    return [*lines, f"  source: {match.source}"]


def _words(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
