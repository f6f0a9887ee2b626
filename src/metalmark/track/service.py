"""Service: one run at one tracker, as the process that sends sees it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from metalmark.scrub import printable
from metalmark.track.event import Begin, End, Known, Model, Row

LONGEST_NAME = 200
_UNFIT = re.compile(r"[^\w.\- :/]", re.ASCII)


class Service(Protocol):
    """Called in this order from one thread; it may wait for its tracker, and raise. What it raises ends this try: the
    next begins with a service of its own, hears everything again, and lets pass what the tracker has already."""

    def begin(self, begin: Begin) -> str:
        """Continue the run of that id, or make it; where a user finds it."""

    def known(self, known: Known) -> None: ...

    def rows(self, rows: Sequence[Row]) -> None: ...

    def file(self, path: Path) -> None: ...

    def model(self, path: Path, model: Model) -> None:
        """`path` is the checkpoint that the model's event names."""

    def end(self, end: End) -> None:
        """Returns when the tracker has everything."""

    def close(self) -> None:
        """Let go of it, ended or not. May be called twice, and before `begin`."""


def fit_name(name: str) -> str:
    """A name that every tracker takes; where letters had to go, some of a digest keep two names apart."""
    parts = [part for part in _UNFIT.sub("_", name).split("/") if part.strip(". ")]
    fitting = "/".join(parts).strip(" /") or "unnamed"
    if fitting[0] == "_":  # W&B keeps those for itself
        fitting = f"x{fitting}"
    if fitting == name and len(name) <= LONGEST_NAME:
        return name
    return f"{fitting[: LONGEST_NAME - 7]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:6]}"


def fit_text(text: str, longest: int) -> str:
    plain = printable(text).encode(errors="replace").decode()
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
