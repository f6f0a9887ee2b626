"""What a tool printed, made fit to store: a count or a name, and None for anything else."""

from __future__ import annotations

from metalmark.scrub import printable

_NAME_CHARS = 120
_DIGITS = 18
"""More would leave the 64 bits that a record's integers have."""


def to_count(value: object) -> int | None:
    """A count from "16", 16 or " 16 "."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def to_name(value: object) -> str | None:
    """One line of text without control characters, its runs of spaces made one."""
    if not isinstance(value, str):
        return None
    # A lone surrogate can come out of JSON, and can't go into it again.
    encodable = value.encode("utf-8", "replace").decode("utf-8")
    return " ".join(printable(encodable).split())[:_NAME_CHARS].strip() or None
