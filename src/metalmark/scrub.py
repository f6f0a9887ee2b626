"""What must not be stored or shown: paths, the user's and the host's name, control characters."""

import os
import re
from pathlib import Path

_SIGN = r"[^\s'\",:;()\[\]<>|]"
_SIGN_OF_A_NAME = r"[^\s'\",:;()\[\]<>|/\\]"
# After the home folder or the root, one sign at least and then a slash. Nothing here is tried in two ways, and a ~
# looks no further than the longest name reaches: a megabyte of anything takes seconds at most.
PATH = re.compile(
    rf"(?<![\w.:/])(?:~(?={_SIGN}{_SIGN_OF_A_NAME}{{0,255}}+[/\\])|[A-Za-z]:\\|/)"
    rf"{_SIGN}(?:{_SIGN_OF_A_NAME}*+[/\\])++({_SIGN_OF_A_NAME}*+)"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def scrub(text: str) -> str:
    """Each absolute path cut to its last part; the home folder's name gone with it."""
    text = PATH.sub(r"\1", text)
    for name in user_names():
        text = re.sub(rf"\b{re.escape(name)}\b", "user", text)
    return printable(text)


def user_names() -> set[str]:
    """As this process knows them; of two letters or of everyone's machine is nobody's."""
    folder = home()
    names = {folder.name if folder else "", os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    return {name for name in names if len(name) >= 3 and name != "root"}


def home() -> Path | None:
    """This user's home folder, which need not exist; None where nothing names one: no HOME is set, and the system does
    not know the user, as in a container that runs under a number of its own."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def place(path: Path) -> str:
    """A folder in words that may be stored and can still be typed: below the home folder, ~ stands for it."""
    folder = home()
    try:
        return f"~/{path.resolve().relative_to(folder.resolve())}" if folder else path.name
    except ValueError:
        return path.name


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: tabs and line ends stay, other control characters go."""
    return _CONTROL.sub("", text)
