"""Members of a .tar or .tar.gz, read in memory: nothing is ever written, so no name or link can lead anywhere."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, cast

from metalmark.data.trouble import damaged
from metalmark.data.unpacked import Bounded, unpacked
from metalmark.errors import FormatError

MOST_MEMBERS = 20_000
CHUNK_BYTES = 2**16
# What tarfile raises on damaged headers; it promises only TarError.
BROKEN = (tarfile.TarError, ValueError, LookupError, struct.error)


def read_members(path: Path, wanted: Callable[[str], bool], *, most_bytes: int, member_bytes: int) -> dict[str, bytes]:
    """The contents of the regular files whose last name is wanted, by that name."""
    with unpacked(path, "an archive") as stream:
        bounded = Bounded(stream, path, most_bytes)
        try:
            found = _read(path, cast(IO[bytes], bounded), wanted, member_bytes)
        except BROKEN as error:
            raise _damaged(path, f"it is damaged or cut short ({error})") from error
        # gzip compares its checksum only at the very end.
        while bounded.read(CHUNK_BYTES):
            pass
    return found


def _read(path: Path, stream: IO[bytes], wanted: Callable[[str], bool], member_bytes: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    # As a stream ("r|") the archive is read once, forward: a header can't send the reader back in a loop.
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, member in enumerate(archive, 1):
            if count > MOST_MEMBERS:
                raise _damaged(path, f"it has more than {MOST_MEMBERS:,} members")
            if member.size < 0:
                raise _damaged(path, f"its member {member.name} claims {member.size:,} bytes")
            inside = PurePosixPath(member.name)
            if not wanted(inside.name):
                continue
            if inside.is_absolute() or ".." in inside.parts:
                raise _damaged(path, f"its member {member.name} leads out of it")
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                raise _damaged(path, f"its member {member.name} is a link or a device, not a file")
            if member.size > member_bytes:
                raise _damaged(path, f"its member {member.name} claims {member.size:,} bytes")
            if inside.name in found:
                raise _damaged(path, f"it has {inside.name} twice")
            content = archive.extractfile(member)
            data = b"" if content is None else content.read()
            if len(data) != member.size:
                raise _damaged(path, f"its member {member.name} is cut short")
            found[inside.name] = data
    return found


def _damaged(path: Path, why: str) -> FormatError:
    return damaged(str(path), "an archive", why)
