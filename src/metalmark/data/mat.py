"""MATLAB's .mat files, version 5, as far as Flowers-102 needs them: named arrays of real numbers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metalmark.data.trouble import damaged
from metalmark.errors import FormatError

KIND = "a MATLAB 5 file"
HEADER_BYTES = 128
MOST_BYTES = 2**26
MATRIX, COMPRESSED = 14, 15
INT8, INT32, UINT32 = 1, 5, 6
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of stored values. A matrix of doubles is stored as bytes when they suffice."""
NUMERIC_CLASSES = range(6, 16)
COMPLEX = 0x0800
NAME_BYTES = 63

Array = npt.NDArray[Any]


def read_mat(data: bytes, name: str) -> dict[str, Array]:
    """The file's arrays by their names."""
    if len(data) < HEADER_BYTES:
        raise damaged(name, KIND, f"it ends within its header, after {len(data)} bytes")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None or int.from_bytes(data[124:126], "little" if order == "<" else "big") != 0x0100:
        raise damaged(name, KIND, "its header names another version")
    reader = Reader(name=name, order=order)
    arrays: dict[str, Array] = {}
    for kind, content in reader.elements(data[HEADER_BYTES:]):
        if kind == COMPRESSED:
            inner = list(reader.elements(reader.inflate(content)))
            if len(inner) != 1:
                raise reader.damaged("a compressed part holds more or less than one array")
            kind, content = inner[0]
        if kind != MATRIX:
            raise reader.damaged(f"it has a part of type {kind}, which is no array")
        label, array = reader.matrix(content)
        arrays[label] = array
    return arrays


@dataclass(frozen=True, kw_only=True)
class Reader:
    name: str
    order: str

    def damaged(self, why: str) -> FormatError:
        return damaged(self.name, KIND, why)

    def number(self, data: bytes) -> int:
        return int.from_bytes(data, "little" if self.order == "<" else "big")

    def inflate(self, data: bytes) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            inflated = unpacker.decompress(data, MOST_BYTES)
        except zlib.error as error:
            raise self.damaged(f"a compressed part is damaged ({error})") from error
        if not unpacker.eof:
            raise self.damaged("a compressed part is cut short or far too large")
        return inflated

    def elements(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Each part's type and content: 8 bytes of tag before it, or 4 when the content fits in the other 4."""
        at = 0
        while at < len(data):
            tag = data[at : at + 8]
            if len(tag) < 8:
                raise self.damaged(f"it ends within a part's tag, {len(tag)} bytes into it")
            first = self.number(tag[:4])
            if first >> 16:
                kind, size, start, after = first & 0xFFFF, first >> 16, at + 4, at + 8
                if size > 4:
                    raise self.damaged(f"a small part claims {size} bytes")
            else:
                kind, size, start = first, self.number(tag[4:]), at + 8
                # Parts start at multiples of 8, except after a compressed one.
                after = start + size + (-size % 8 if kind != COMPRESSED else 0)
            if start + size > len(data):
                raise self.damaged(f"a part claims {size:,} bytes and {max(0, len(data) - start):,} are there")
            yield kind, data[start : start + size]
            at = after

    def matrix(self, content: bytes) -> tuple[str, Array]:
        parts = list(self.elements(content))
        if len(parts) != 4:
            raise self.damaged("an array has other parts than flags, sizes, name and values")
        (flags_kind, flags), (sizes_kind, sizes), (name_kind, label), (kind, values) = parts
        if (flags_kind, len(flags), sizes_kind, name_kind) != (UINT32, 8, INT32, INT8):
            raise self.damaged("an array's parts are not in their order")
        word = self.number(flags[:4])
        if word & 0xFF not in NUMERIC_CLASSES or word & COMPLEX or kind not in NUMBERS:
            raise self.damaged("it holds something else than real numbers")
        if not 1 <= len(label) <= NAME_BYTES or not label.isascii():
            raise self.damaged("an array's name is not one")
        dtype = np.dtype(NUMBERS[kind]).newbyteorder("<" if self.order == "<" else ">")
        if len(sizes) % 4 or not 8 <= len(sizes) <= 4 * 32:
            raise self.damaged("an array's sizes are damaged")
        shape = [int(size) for size in np.frombuffer(sizes, f"{self.order}i4")]
        if min(shape) < 0 or math.prod(shape) * dtype.itemsize != len(values):
            raise self.damaged(f"the array {label.decode()} has {len(values):,} bytes for the sizes {shape}")
        return label.decode(), np.frombuffer(values, dtype).reshape(shape, order="F").astype(dtype.newbyteorder("="))
