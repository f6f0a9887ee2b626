"""Reading data files that may be damaged or hostile: bounded, unpacked in memory, with one sentence for what is wrong.

Nothing from an archive is ever written to disk, so no member's name or link can lead anywhere.
"""

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from metalmark.errors import FormatError
from metalmark.scrub import printable

REPLACE = "Replace it with the official file, or let --data real fetch one."
MAX_MEMBERS = 20_000
MAX_EMPTY_READS = 16
CHUNK_BYTES = 2**16
# What tarfile raises on damaged headers; it promises only TarError.
TAR_ERRORS = (tarfile.TarError, ValueError, LookupError, struct.error)


def damaged(name: str | Path, kind: str, why: str, *, hint: str = REPLACE) -> FormatError:
    """Return the error for a file that is not of its kind. `name` may come from inside an archive, so it is cleaned
    before a terminal sees it."""
    return FormatError(f"{printable(str(name))} can't be read as {kind}: {printable(why)}.", hint=hint)


def unreadable(path: Path, error: OSError) -> FormatError:
    why = error.strerror or type(error).__name__
    return FormatError(f"{printable(str(path))} can't be read: {why}.", hint="Check that it exists and is readable.")


def read_bounded(path: Path, kind: str, max_bytes: int) -> bytes:
    """Return the whole file, unless it is far larger than any file of its kind."""
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > max_bytes:
        raise damaged(path, kind, f"it is larger than {max_bytes:,} bytes, and no such file is")
    return data


def md5_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def md5_of_bytes(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def unpacked(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """Open a file, unpacked if gzip packed it (known by its first bytes, since names lie).

    What gzip or the disk complains of inside becomes a FormatError.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                    yield cast(IO[bytes], stream)
            else:
                yield file
    except EOFError as error:
        raise damaged(path, kind, "its compressed data ends early") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, kind, f"its compressed data is damaged ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_members(path: Path, wanted: Callable[[str], bool], *, max_bytes: int, member_bytes: int) -> dict[str, bytes]:
    """Return the contents of an archive's regular files whose last name is wanted, by that name."""
    with unpacked(path, "an archive") as stream:
        bounded = BoundedStream(stream, path, max_bytes)
        try:
            members = _read_tar(path, cast(IO[bytes], bounded), wanted, member_bytes)
        except TAR_ERRORS as error:
            raise damaged(path, "an archive", f"it is damaged or cut short ({error})") from error
        # gzip compares its checksum only at the very end.
        while bounded.read(CHUNK_BYTES):
            pass
    return members


class BoundedStream(io.RawIOBase):
    """Stops a small file that unpacks to a huge one, and a reader that goes on asking at the end."""

    def __init__(self, stream: IO[bytes], path: Path, max_bytes: int) -> None:
        self._stream, self._path, self._left_bytes, self._empty_reads = stream, path, max_bytes, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if 0 <= size <= self._left_bytes else self._left_bytes + 1)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise damaged(self._path, "an archive", "it unpacks to far more than this data set has")
        # tarfile skips a member in small steps, end or no end: one that claims a terabyte keeps it busy for hours.
        self._empty_reads += not data
        if self._empty_reads > MAX_EMPTY_READS:
            raise damaged(self._path, "an archive", "a member claims more bytes than there are: it is cut short")
        return data


def _read_tar(path: Path, stream: IO[bytes], wanted: Callable[[str], bool], member_bytes: int) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    # As a stream ("r|") the archive is read once, forward: a header can't send the reader back in a loop.
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, member in enumerate(archive, 1):
            inside = PurePosixPath(member.name)
            data = b""
            why = ""
            if count > MAX_MEMBERS:
                why = f"it has more than {MAX_MEMBERS:,} members"
            elif member.size < 0:
                why = f"its member {member.name} claims {member.size:,} bytes"
            elif not wanted(inside.name):
                continue
            elif inside.is_absolute() or ".." in inside.parts:
                why = f"its member {member.name} leads out of it"
            elif member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                why = f"its member {member.name} is a link or a device, not a file"
            elif member.size > member_bytes:
                why = f"its member {member.name} claims {member.size:,} bytes"
            elif inside.name in members:
                why = f"it has {inside.name} twice"
            else:
                content = archive.extractfile(member)
                data = b"" if content is None else content.read()
                if len(data) != member.size:
                    why = f"its member {member.name} is cut short"
            if why:
                raise damaged(path, "an archive", why)
            members[inside.name] = data
    return members
