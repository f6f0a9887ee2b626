"""A file's bytes, unpacked if gzip packed it: known by how it starts, since names lie."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from metalmark.data.trouble import damaged, unreadable

PATIENCE = 16


@contextmanager
def unpacked(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """Opens it; what gzip or the disk complains of inside becomes a FormatError."""
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
        raise damaged(str(path), kind, "its compressed data ends early") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise damaged(str(path), kind, f"its compressed data is damaged ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


class Bounded(io.RawIOBase):
    """Stops a small file that unpacks to a huge one, and a reader that goes on asking at the end."""

    def __init__(self, stream: IO[bytes], path: Path, most_bytes: int) -> None:
        self._stream, self._path, self._left, self._refused = stream, path, most_bytes, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise damaged(str(self._path), "an archive", "it unpacks to far more than this data set has")
        # tarfile skips a member in small steps, end or no end: one that claims a terabyte keeps it busy for hours.
        self._refused += not data
        if self._refused > PATIENCE:
            raise damaged(str(self._path), "an archive", "a member claims more bytes than there are: it is cut short")
        return data
