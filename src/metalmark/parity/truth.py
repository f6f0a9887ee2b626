"""What both sides are compared with: every array of the reference in float64, kept in one file, and how far another
array is from it.

Layers come one at a time and are compared with the file as they come, so the memory that a check needs beside the
network's own is that of one layer.
"""

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
from msgspec import Struct

from metalmark.errors import FormatError, UnsupportedError
from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.parity.distance import Distance, Key

INDEX, ARRAYS = "truth.json", "truth.bin"
SMALL = 1 << 16
"""Arrays of up to so many elements are kept in float64, larger ones in float32: their own rounding is far below the
noise of anything that was computed in float32, and it halves what is written."""
CHUNK = 1 << 21
"""Elements that are compared at once."""


class NotFiniteError(UnsupportedError):
    """The reference itself gives NaN or infinity, with which nothing can be compared."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The reference itself gives values that are not finite: {what}.",
            hint="Mend the network or its data first: nothing can be compared with NaN.",
        )


class Entry(Struct, frozen=True, kw_only=True):
    key: Key
    shape: tuple[int, ...]
    dtype: str
    offset: int
    rms: float


class Index(Struct, frozen=True, kw_only=True):
    entries: tuple[Entry, ...]


class TruthWriter:
    """Writes arrays one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] = (folder / ARRAYS).open("wb")
        self._entries: dict[Key, Entry] = {}

    def add(self, key: Key, array: np.ndarray) -> None:
        if not np.isfinite(array).all():
            what = f"{key.quantity.value} of {key.name}" if key.name else key.quantity.value
            raise NotFiniteError(what)
        if key in self._entries:
            return
        kept = np.ascontiguousarray(array, np.float64 if array.size <= SMALL else np.float32)
        try:
            kept.tofile(self._file)
        except OSError as error:
            raise UnsupportedError(
                f"The reference's arrays can't be written to the folder for temporary files: {error.strerror}.",
                hint="Free some space or set TMPDIR to a folder that has more; or use a smaller --batch-size.",
            ) from error
        rms = math.sqrt(_mean_square(kept))
        self._entries[key] = Entry(
            key=key, shape=array.shape, dtype=str(kept.dtype), offset=self._file.tell() - kept.nbytes, rms=rms
        )

    def close(self) -> None:
        self._file.close()
        write_struct(self._folder / INDEX, Index(entries=tuple(self._entries.values())))


class Truth:
    """Reads what a TruthWriter wrote."""

    def __init__(self, folder: Path) -> None:
        index = read_json((folder / INDEX).read_bytes(), Index, source=INDEX)
        self._path = folder / ARRAYS
        self.entries = {entry.key: entry for entry in index.entries}

    def __contains__(self, key: Key) -> bool:
        return key in self.entries

    def array(self, key: Key) -> np.ndarray:
        entry = self.entries[key]
        if not math.prod(entry.shape):
            return np.zeros(entry.shape)
        return np.memmap(self._path, entry.dtype, "r", entry.offset, entry.shape)

    def distance(self, key: Key, array: np.ndarray) -> Distance | None:
        """Compare an array with the truth; None where the reference has no such array."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if tuple(array.shape) != tuple(entry.shape):
            raise FormatError(
                f"{key.quantity.value} of {key.name}: the reference's shape is {tuple(entry.shape)}, this side's is "
                f"{tuple(array.shape)}.",
                hint="Both sides must build the same network.",
            )
        return _distance(key, entry, self.array(key), np.asarray(array))


def _distance(key: Key, entry: Entry, truth: np.ndarray, array: np.ndarray) -> Distance:
    expected, given = truth.reshape(-1), np.ascontiguousarray(array).reshape(-1)
    # Large arrays are kept in float32, and a network may have a hundred million parameters: twice the digits would
    # take several times as long and tell no more of a sum of squares.
    exact: Any = np.float64 if expected.dtype == np.float64 else np.float32
    squares = product = norm = largest = 0.0
    place, finite = 0, True
    for begin in range(0, len(expected), CHUNK):
        mine: Any = np.asarray(expected[begin : begin + CHUNK], exact)
        difference: Any = (
            np.asarray(given[begin : begin + CHUNK], np.float64 if given.dtype == np.float64 else exact) - mine
        )
        difference = difference.astype(exact, copy=False)
        square = float(difference @ difference)
        if not math.isfinite(square):
            place, finite = begin + int(np.argmax(~np.isfinite(difference))), False
            break
        squares += square
        product += float(difference @ mine)
        norm += float(mine @ mine)
        size = np.abs(difference)
        highest = int(np.argmax(size)) if len(size) else 0
        if len(size) and size[highest] > largest:
            place, largest = begin + highest, float(size[highest])
    where = tuple(int(index) for index in np.unravel_index(place, entry.shape)) if array.size else ()
    return Distance(
        key=key,
        elements=array.size,
        rms=entry.rms,
        typical=math.sqrt(squares / max(1, array.size)) if finite else None,
        largest=largest if finite else None,
        scale=product / norm if finite and norm else None,
        where=where,
    )


def _mean_square(array: np.ndarray) -> float:
    flat = array.reshape(-1)
    total = 0.0
    for begin in range(0, len(flat), CHUNK):
        part = flat[begin : begin + CHUNK]
        total += float(part @ part)
    return total / max(1, len(flat))
