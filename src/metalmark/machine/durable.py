"""Files that are read whole within a limit, and written whole or not at all, where Linux and macOS differ."""

import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

MOST_BYTES = 1 << 30
"""Larger than any file that is read into memory as a whole."""
TOO_LARGE = "it is too large"
LONGEST_NAME = 255
READER_S = 5.0
"""How long a pipe may be without a reader before nobody is believed to come."""


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


def read_whole(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a regular file holds. Raise an OSError for one that is larger, and for a device or a pipe, which may
    have no end or nobody at the other one."""
    # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        # A file of /proc has no size and can be long, and any file may grow meanwhile.
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, TOO_LARGE, os.fspath(path))
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Write all of it or nothing, even if the power fails: to a file beside it, forced onto the drive, then renamed.

    A link is followed. What is there and is not a regular file, such as /dev/null or a pipe, is written into: a rename
    would put a file in the place of the device.
    """
    try:
        status: os.stat_result | None = os.stat(path)
    except FileNotFoundError:  # a link to nothing is one too: the file that it names is made
        status = None
    if (status is not None and not stat.S_ISREG(status.st_mode)) or _is_descriptor(path):
        _write_into(path, data)
        return
    target = Path(os.path.realpath(path))
    descriptor, beside = _new_file_beside(target)
    try:
        with open(descriptor, "wb") as file:
            if status is not None:
                with suppress(OSError):  # a file system without permissions
                    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            file.write(data)
            file.flush()
            flush_to_drive(file.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _is_descriptor(path: Path) -> bool:
    """Tell whether a path means a file that this process has open, such as /dev/stdout: the file itself may be in use
    by others, who would not see one that is put in its place."""
    parent = os.path.realpath(path.parent)
    return (path.name in ("stdin", "stdout", "stderr") and parent == "/dev") or parent.startswith(("/dev/fd", "/proc/"))


def _write_into(path: Path, data: bytes) -> None:
    # Without O_NONBLOCK, opening a pipe waits for ever for somebody to read from it.
    give_up_at = time.monotonic() + READER_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(os.stat(path).st_mode):
                raise
            if time.monotonic() > give_up_at:
                raise OSError(errno.ENXIO, "nobody reads from this pipe", os.fspath(path)) from error
            time.sleep(0.05)
    os.set_blocking(descriptor, True)
    with open(descriptor, "wb") as file:
        file.write(data)


def _new_file_beside(path: Path) -> tuple[int, Path]:
    """Make a file of which nobody knows yet. A process that was killed may have left one behind, and another may write
    to the same place at this moment."""
    name = f"{path.name}.part"
    while True:
        short = name if len(os.fsencode(name)) <= LONGEST_NAME else f".metalmark-{secrets.token_hex(4)}.part"
        try:
            beside = path.with_name(short)
            return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), beside
        except FileExistsError:
            name = f".{path.name}.{secrets.token_hex(4)}.part"


def write_struct(path: Path, value: msgspec.Struct) -> None:
    write_whole(path, msgspec.json.encode(value))
