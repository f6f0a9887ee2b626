"""Lineup: trainings of one workload side by side, in a folder each under one, so that all of them can be resumed."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import decode_versioned
from metalmark.model.run import Identifier
from metalmark.runner.job import write_struct
from metalmark.scrub import printable

LINEUP = "lineup.json"
SCHEMA = 1


class Lineup(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    id: Identifier
    created_at: str
    members: tuple[str, ...]
    """Folders below this one, in the order in which they are trained."""


def is_lineup(folder: Path) -> bool:
    return (folder / LINEUP).exists()


def lineup_of(folder: Path) -> str:
    """The id of the line-up that a training's folder belongs to; empty where it is by itself."""
    if not is_lineup(folder.parent):
        return ""
    try:
        lineup = read_lineup(folder.parent)
    except (FormatError, UsageError):  # whoever asks for it by itself hears of it; here it decides a name in a list
        return ""
    return lineup.id if folder.name in lineup.members else ""


def write_lineup(folder: Path, lineup: Lineup) -> None:
    write_struct(folder / LINEUP, lineup)


def read_lineup(folder: Path) -> Lineup:
    path = folder / LINEUP
    try:
        lineup = decode_versioned(path.read_bytes(), Lineup, newest=SCHEMA, source=str(path))
    except OSError as error:
        raise UsageError(
            f"{folder} holds no trainings side by side: {LINEUP} can't be read ({error.strerror}).",
            hint="Give the folder that `metalmark train` wrote: metalmark train --resume=DIR",
        ) from error
    except msgspec.DecodeError as error:
        raise FormatError(
            f"{path} is damaged: {printable(str(error))}.",
            hint="Each training in it can still be resumed by its own folder.",
        ) from error
    if any(name in ("", ".", "..") or "/" in name or "\\" in name for name in lineup.members):
        # The file may come from anywhere; what it names is read and written.
        raise FormatError(f"{path} names a folder outside of its own.", hint="Resume each training by its own folder.")
    return lineup
