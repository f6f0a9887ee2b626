"""What a loader should be given here, and why: decided without any framework."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from metalmark.errors import UnsupportedError
from metalmark.feeds.files import allow_files

PLENTY = (65536, 10240)
"""Open files that no loader runs out of; the second is the most that macOS grants where it names no limit."""
MOST_FORKED, MOST_FRESH = 8, 4
"""A fresh worker imports the framework again: seconds and hundreds of megabytes each."""
GUARD = re.compile(r"""__name__\s*==\s*["']__main__["']|["']__main__["']\s*==\s*__name__""")
THREADED = ("tensorflow", "jax")


def start_method(*, platform: str = sys.platform, unguarded: str, imported: Container[str]) -> tuple[str, str]:
    """`unguarded`: why the script can't be imported by a fresh process, or nothing."""
    if platform != "linux":
        return "spawn", "a forked process may not use macOS's frameworks"
    threaded = [name for name in THREADED if name in imported]
    if threaded and not unguarded:
        return "forkserver", f"{threaded[0]} is imported, and a fork would leave its threads half alive"
    return "fork", "starts at once, and nothing here forbids it"


def workers(
    *, cores: int | None, method: str, iterable: bool, resident: bool, travels: Callable[[], str]
) -> tuple[int, str]:
    """How many, and why. `travels`: why the data set can't be sent to a fresh process, or nothing."""
    if iterable:
        return 0, "each worker of an IterableDataset would give all its samples again"
    if resident:
        return 0, "its samples are tensors in memory: fetching one is cheaper than sending it"
    if cores is None or cores < 2:
        return 0, "there is one core, and training has it"
    if method != "fork" and (trouble := travels()):
        return 0, trouble
    most = MOST_FORKED if method == "fork" else MOST_FRESH
    count = min(cores - 1, most)
    return (
        count,
        f"{cores} cores, one of them for training" if count < most else f"{most} are enough for most data sets",
    )


def why_unguarded(main: Any) -> str:
    """A fresh worker imports the script again: one that trains when it is imported would start workers without end."""
    path = getattr(main, "__file__", None)
    if path is None:
        return ""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "" if GUARD.search(text) else 'the script has no `if __name__ == "__main__":`, which worker processes need'


def why_not_travelling(things: tuple[Any, ...]) -> str:
    """Pickles as a fresh worker would need it, to nowhere."""
    try:
        pickle.Pickler(_Nowhere()).dump(things)
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything
        return f"it can't be sent to a worker process: {error}"
    # What a notebook or `python -c` defines is in no file that a fresh process could import.
    if not hasattr(sys.modules["__main__"], "__file__") and any(type(x).__module__ == "__main__" for x in things):
        return "its class is defined in no file that a worker process could import"
    return ""


def enough_files(needed: int) -> str:
    """Raises the limit as far as the system lets us; the reason where that is less than a loader needs."""
    trouble = ""
    for wanted in (*PLENTY, needed):
        try:
            allow_files(wanted)
        except UnsupportedError as error:
            trouble = error.message
        else:
            return ""
    return trouble


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)
