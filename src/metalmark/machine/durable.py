"""Files that are written whole or not at all, and forced onto the drive, where Linux and macOS differ."""

import fcntl
import os
import sys
from pathlib import Path

import msgspec


def flush_to_drive(descriptor: int) -> None:
    """Return when what was written to this open file would survive a power cut.

    On macOS, fsync hands the data to the drive and leaves it in the drive's own cache; F_FULLFSYNC empties that too.
    Not every file system has it (network and FAT volumes do not): there, fsync is all that can be asked for.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(descriptor)
    else:
        os.fsync(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write all of it or nothing, even if the power fails: to a file beside it, forced onto the drive, then renamed."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        flush_to_drive(file.fileno())
    beside.replace(path)


def write_struct(path: Path, value: msgspec.Struct) -> None:
    write_whole(path, msgspec.json.encode(value))
