"""mm.loader(): a DataLoader with what this machine needs: workers, how they start and share, open files, pinned memory.

What it is given here, and why, is decided without any framework.
"""

import pickle
import re
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from metalmark.errors import NotInstalledError, UnsupportedError
from metalmark.feeds.files import allow_files

PLENTY = (65536, 10240)
"""Open files that no loader runs out of; the second is the most that macOS grants where it names no limit."""
MOST_FORKED, MOST_FRESH = 8, 4
"""A fresh worker imports the framework again: seconds and hundreds of megabytes each."""
GUARD = re.compile(r"""__name__\s*==\s*["']__main__["']|["']__main__["']\s*==\s*__name__""")
THREADED = ("tensorflow", "jax")


def loader(dataset: Any, **options: Any) -> Any:
    """Make PyTorch's DataLoader, called as PyTorch's is.

    What you give is taken as it is; what you leave out of num_workers, multiprocessing_context, persistent_workers
    and pin_memory is chosen for this machine, and the loader's `.why` says why. The open-file limit is raised; where
    the system forbids that, tensors are shared by name instead of by open file.
    """
    try:
        from metalmark.kit.on_torch import make_loader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise NotInstalledError(
            "mm.loader() is PyTorch's DataLoader, and PyTorch is not installed.", hint="pip install 'metalmark[torch]'"
        ) from error
    return make_loader(dataset, options)


def start_method(*, platform: str = sys.platform, unguarded: str, imported: Container[str]) -> tuple[str, str]:
    """Choose how workers start, and why. `unguarded`: why a fresh process can't import the script, or nothing."""
    if platform != "linux":
        return "spawn", "a forked process may not use macOS's frameworks"
    threaded = [name for name in THREADED if name in imported]
    if threaded and not unguarded:
        return "forkserver", f"{threaded[0]} is imported, and a fork would leave its threads half alive"
    return "fork", "starts at once, and nothing here forbids it"


def workers(
    *, cores: int | None, method: str, iterable: bool, resident: bool, travels: Callable[[], str]
) -> tuple[int, str]:
    """Choose how many, and why. `travels`: why the data set can't be sent to a fresh process, or nothing."""
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
    why = f"{cores} cores, one of them for training" if count < most else f"{most} are enough for most data sets"
    return count, why


def why_unguarded(main: Any) -> str:
    """Return why the script can't be imported by a fresh worker, or nothing: without its guard it would train there
    again, and start workers without end."""
    path = getattr(main, "__file__", None)
    if path is None:
        return ""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "" if GUARD.search(text) else 'the script has no `if __name__ == "__main__":`, which worker processes need'


def why_not_travelling(things: tuple[Any, ...]) -> str:
    """Return why these can't be sent to a fresh worker, or nothing; pickles them as that would need it."""
    try:
        pickle.Pickler(_Nowhere()).dump(things)
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything
        return f"it can't be sent to a worker process: {error}"
    # What a notebook or `python -c` defines is in no file that a fresh process could import.
    if not hasattr(sys.modules["__main__"], "__file__") and any(type(x).__module__ == "__main__" for x in things):
        return "its class is defined in no file that a worker process could import"
    return ""


def enough_files(needed: int) -> str:
    """Raise the limit as far as the system allows; return the reason where that is less than a loader needs."""
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
