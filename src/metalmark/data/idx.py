"""IDX, the format of MNIST and Fashion-MNIST: big-endian sizes, then bytes; plain or compressed by gzip."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from metalmark.data.split import Pixels
from metalmark.data.trouble import damaged
from metalmark.data.unpacked import unpacked
from metalmark.errors import FormatError

UNSIGNED_BYTE = 0x08
MOST_BYTES = 2**30
"""MNIST's largest file has 47 MB. A header that asks for more than this is damage or malice."""
CHUNK_BYTES = 2**20
CONTENTS = {1: "labels", 3: "images"}


def read_idx(path: Path, *, dimensions: int) -> Pixels:
    """The array in that file, read-only: 3 dimensions for images, 1 for labels."""
    with unpacked(path, "IDX") as stream:
        return _parse(path, stream, dimensions)


def idx_bytes(array: Pixels) -> bytes:
    """The array as an IDX file holds it, uncompressed: hashes of those are published."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape) + array.tobytes()


def _parse(path: Path, stream: IO[bytes], dimensions: int) -> Pixels:
    magic = _take(stream, 4)
    if len(magic) < 4:
        raise _damaged(path, f"it ends within its first 4 bytes, after {len(magic)}")
    if magic[:2] != b"\x00\x00":
        raise _damaged(path, f"it starts with {magic.hex(' ')}, and IDX starts with 00 00")
    if magic[2] != UNSIGNED_BYTE:
        raise _damaged(path, f"its values have type 0x{magic[2]:02x}, not unsigned bytes (0x08)")
    if magic[3] != dimensions:
        wanted = CONTENTS.get(dimensions, "these")
        raise _damaged(
            path,
            f"it has {magic[3]} dimensions and {wanted} have {dimensions}",
            hint="Check that the images' and the labels' file are not exchanged.",
        )
    sizes = _take(stream, 4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise _damaged(path, f"it ends within its header, after {4 + len(sizes)} bytes")
    shape = struct.unpack(f">{dimensions}I", sizes)
    wanted_bytes = math.prod(shape)
    described = " x ".join(map(str, shape))
    if wanted_bytes > MOST_BYTES:
        raise _damaged(path, f"its header asks for {described} bytes, more than any such file holds")
    data = _take(stream, wanted_bytes + 1)
    if len(data) < wanted_bytes:
        raise _damaged(path, f"its header promises {described} bytes and {len(data):,} are there: it is cut short")
    if len(data) > wanted_bytes:
        raise _damaged(path, f"there are bytes after the {described} that its header promises")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _take(stream: IO[bytes], count: int) -> bytes:
    """Up to `count` bytes; in pieces, so that a lying header does not reserve memory for what is not there."""
    pieces: list[bytes] = []
    while count > 0 and (piece := stream.read(min(count, CHUNK_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _damaged(path: Path, why: str, **hint: str) -> FormatError:
    return damaged(str(path), "IDX", why, **hint)
