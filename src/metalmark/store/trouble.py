"""SQLite's complaints, as messages that say what, why and what to type next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metalmark.errors import StoreError

ELSEWHERE = "Choose another store with --store FILE or METALMARK_STORE."

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "locked",
        "another process has held it locked for {wait:g} s",
        "Wait for the other metalmark to end, or use --store FILE.",
    ),
    ("disk is full", "the disk is full", "Free some space; what was stored before is safe."),
    ("disk i/o error", "the disk gave an input/output error", f"Check the disk's space and health. {ELSEWHERE}"),
    ("readonly", "it is read-only", f"Give yourself the right to write it, or: {ELSEWHERE}"),
    ("not a database", "it is not a SQLite file", f"It was left as it is. {ELSEWHERE}"),
    ("malformed", "it is damaged", f"It was left as it is; keep a copy before repairing it. {ELSEWHERE}"),
    ("no such table", "it holds other tables than a store's", f"It was left as it is. {ELSEWHERE}"),
    ("no such column", "it holds other tables than a store's", f"It was left as it is. {ELSEWHERE}"),
    ("unable to open", "it can't be opened or made there", f"Check that its folder exists and is yours. {ELSEWHERE}"),
)


@contextmanager
def explained(path: Path, *, wait_s: float) -> Iterator[None]:
    """Turns what SQLite raises inside into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error).lower()
        for sign, why, next_step in _KNOWN:
            if sign in text:
                raise StoreError(
                    f"The store {path} can't be used: {why.format(wait=wait_s)}.", hint=next_step
                ) from error
        raise StoreError(f"The store {path} can't be used: {error}.", hint=ELSEWHERE) from error
