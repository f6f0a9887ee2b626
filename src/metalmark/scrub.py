"""What must not be stored or shown: paths, the user's and the host's name, control characters."""

from __future__ import annotations

import os
import re
from pathlib import Path

PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:\\|/)(?:[^\s'\",:;()\[\]<>|]+[/\\])+([^\s'\",:;()\[\]<>|/\\]*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def scrub(text: str) -> str:
    """Each absolute path cut to its last part; the home folder's name gone with it."""
    text = PATH.sub(r"\1", text)
    for name in user_names():
        text = re.sub(rf"\b{re.escape(name)}\b", "user", text)
    return printable(text)


def user_names() -> set[str]:
    """As this process knows them; of two letters or of everyone's machine is nobody's."""
    names = {Path.home().name, os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    return {name for name in names if len(name) >= 3 and name != "root"}


def place(path: Path) -> str:
    """A folder in words that may be stored and can still be typed: below the home folder, ~ stands for it."""
    try:
        return f"~/{path.resolve().relative_to(Path.home().resolve())}"
    except ValueError:
        return path.name


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: tabs and line ends stay, other control characters go."""
    return _CONTROL.sub("", text)
