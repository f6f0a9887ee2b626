"""Flowers-102 as its authors publish it: jpg/image_NNNNN.jpg, imagelabels.mat and setid.mat.

The experiment's 6552/818/819 images are a split of its own, never published as lists; the authors' is 1020/1020/6149.
As most tutorials do, training takes the authors' large test set; the missing 403 come from their other two sets,
evenly over the classes, and what is left of those is halved into validation and test.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metalmark.data.dataset import Dataset, ImageSplit
from metalmark.data.fetch import PUBLISHED
from metalmark.data.files import damaged, md5_of, read_bounded, read_members, unreadable
from metalmark.data.folder import EncodedImages, FilesIn, fingerprint, read_head
from metalmark.errors import FormatError

MAT = "a MATLAB 5 file"
ARCHIVE, LABELS, SETS = "102flowers.tgz", "imagelabels.mat", "setid.mat"
CLASSES = tuple(str(number) for number in range(1, 103))
"""The files give classes numbers and no names."""
IMAGE = re.compile(r"image_\d{5}\.jpg")
MAX_IMAGES = 99_999
ARCHIVE_BYTES, IMAGE_BYTES = 2**30, 2**24

HEADER_BYTES = 128
MAT_BYTES = 2**26
MATRIX, COMPRESSED = 14, 15
INT8, INT32, UINT32 = 1, 5, 6
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of stored values. A matrix of doubles is stored as bytes when they suffice."""
NUMERIC_CLASSES = range(6, 16)
COMPLEX = 0x0800
NAME_BYTES = 63

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def is_flowers(path: Path) -> bool:
    return (path / LABELS).is_file() or (path / SETS).is_file()


def load_flowers(path: Path, *, pixels: int) -> Dataset:
    for name in (LABELS, SETS):
        if not (path / name).is_file():
            raise FormatError(f"{path} has no {name}.", hint=f"Put {PUBLISHED['flowers-102'].address}{name} there.")
    labels = _numbers(path / LABELS, "labels")
    sets = {name: _numbers(path / SETS, name) for name in ("trnid", "valid", "tstid")}
    parts = divide(labels, sets["trnid"], sets["valid"], sets["tstid"], path / SETS)
    if labels.min() < 1 or labels.max() > len(CLASSES):
        raise damaged(path / LABELS, "Flowers-102's labels", f"they go from {labels.min()} to {labels.max()}")
    read, facts = _images(path, len(labels))
    splits = [
        ImageSplit(
            images=EncodedImages(tuple(image_name(number) for number in ids), read, pixels),
            labels=(labels[ids - 1] - 1).astype(np.int32),
            classes=CLASSES,
        )
        for ids in parts
    ]
    facts_digest = hashlib.sha256()
    for split, ids in zip(splits, parts, strict=True):
        for number, label in zip(ids, split.labels, strict=True):
            facts_digest.update(f"{number} {label} {facts[number - 1]}\n".encode())
    train, validation, test = splits
    sizes = "/".join(str(len(split)) for split in splits)
    # Of images that were unpacked nothing is published.
    published = PUBLISHED["flowers-102"].files
    official = not (path / "jpg").is_dir() and all(md5_of(path / name) == md5 for name, md5 in published.items())
    state = "official files, md5 verified" if official else "given files, not verified"
    source = f"flowers-102, {state}; split {sizes}, training on the official test set and a part of the others"
    digest = facts_digest.hexdigest()
    return Dataset(name="flowers-102", source=source, train=train, validation=validation, test=test, digest=digest)


def image_name(number: int) -> str:
    return f"image_{number:05d}.jpg"


def divide(labels: Ids, training: Ids, validation: Ids, test: Ids, path: Path) -> tuple[Ids, Ids, Ids]:
    """Train, validation and test, as numbers of images from 1: four fifths, and the rest halved."""
    every = np.concatenate([training, validation, test])
    if len(labels) > MAX_IMAGES or sorted(every.tolist()) != list(range(1, len(labels) + 1)):
        raise damaged(path, "Flowers-102's sets", f"they are not each of the {len(labels):,} images once")
    pool = np.concatenate([training, validation])
    # The n-th image of every class before the (n+1)-th of any, so that any cut leaves each class its share.
    keys = {int(number): hashlib.sha256(image_name(number).encode()).digest() for number in pool}
    rank: dict[int, int] = {}
    seen: dict[int, int] = {}
    for number in sorted(keys, key=keys.__getitem__):
        label = int(labels[number - 1])
        rank[number] = seen[label] = seen.get(label, -1) + 1
    ordered = np.array(sorted(rank, key=lambda number: (rank[number], keys[number])), np.int64)
    more = max(0, -(-4 * len(labels) // 5) - len(test))
    half = more + (len(ordered) - more) // 2
    parts = np.concatenate([test, ordered[:more]]), ordered[more:half], ordered[half:]
    if not all(len(part) for part in parts):
        raise damaged(path, "Flowers-102's sets", "they leave nothing to train, validate or test on")
    return parts


def _numbers(path: Path, name: str) -> Ids:
    arrays = read_mat(read_bounded(path, MAT, MAT_BYTES), str(path))
    if name not in arrays or arrays[name].dtype.kind not in "iu" or arrays[name].size == 0:
        raise damaged(path, "Flowers-102's numbers", f"it has no whole numbers called {name}")
    return arrays[name].ravel().astype(np.int64)


def _images(path: Path, count: int) -> tuple[Callable[[str], bytes], list[str]]:
    """How to read the images, and a line about each, in order: from jpg/ if it was unpacked, else from the archive."""
    names = [image_name(number) for number in range(1, count + 1)]
    held: dict[str, bytes] = {}
    if (place := path / "jpg").is_dir():
        missing = next((name for name in names if not (place / name).is_file()), None)
    elif (place := path / ARCHIVE).is_file():
        held = read_members(
            place, lambda name: IMAGE.fullmatch(name) is not None, max_bytes=ARCHIVE_BYTES, member_bytes=IMAGE_BYTES
        )
        missing = next((name for name in names if name not in held), None)
    else:
        raise FormatError(
            f"{path} has neither {ARCHIVE} nor the folder jpg/ that it unpacks to.",
            hint=f"Put {PUBLISHED['flowers-102'].address}{ARCHIVE} there.",
        )
    if missing is not None:
        raise FormatError(f"{place} has no {missing}, and {LABELS} gives it a label.", hint=f"Unpack {ARCHIVE} again.")
    facts = []
    try:
        for name in names:
            head, size = (held[name], len(held[name])) if held else read_head(place / name)
            facts.append(f"{size} {fingerprint(head)}")
    except OSError as error:
        raise unreadable(Path(error.filename or place), error) from error
    return held.__getitem__ if held else FilesIn(place), facts


def read_mat(data: bytes, name: str) -> dict[str, Array]:
    """The file's arrays by their names."""
    if len(data) < HEADER_BYTES:
        raise damaged(name, MAT, f"it ends within its header, after {len(data)} bytes")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None or int.from_bytes(data[124:126], "little" if order == "<" else "big") != 0x0100:
        raise damaged(name, MAT, "its header names another version")
    reader = MatReader(name=name, order=order)
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
class MatReader:
    name: str
    order: str

    def damaged(self, why: str) -> FormatError:
        return damaged(self.name, MAT, why)

    def number(self, data: bytes) -> int:
        return int.from_bytes(data, "little" if self.order == "<" else "big")

    def inflate(self, data: bytes) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            inflated = unpacker.decompress(data, MAT_BYTES)
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
