"""Force data onto the drive, where Linux and macOS differ."""

from __future__ import annotations

import fcntl
import os
import sys


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
