"""The spool: runs that a server did not take are kept in a store on this machine, and whoever runs the command hears of
it, at once and at its end."""

import shlex
import sys
from pathlib import Path

from metalmark.errors import StoreError, counted
from metalmark.store.address import ServerAddress

_unsent: dict[tuple[ServerAddress, Path], list[str]] = {}
"""The ids of runs that this process had to keep here."""


def note(run: str, address: ServerAddress, path: Path, why: StoreError) -> None:
    """Remember that a run was kept, and say so the first time."""
    ids = _unsent.setdefault((address, path), [])
    if not ids:
        text = f"metalmark: {why.message} Runs are kept in {path}; later: {send_command(path, address)}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    if run not in ids:
        ids.append(run)


def unsent() -> list[str]:
    """Return a sentence for each server that did not take all that this process measured, with what to type."""
    return [
        f"{counted(len(ids), 'run')} could not be stored in {address}: kept in {path}.\n"
        f"  Send them when it is back: {send_command(path, address)}"
        for (address, path), ids in _unsent.items()
    ]


def send_command(path: Path, address: ServerAddress) -> str:
    return f"metalmark runs sync --push --store {shlex.quote(str(path))} {shlex.quote(str(address))}"
