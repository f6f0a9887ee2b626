"""MNIST and Fashion-MNIST: four IDX files of the same names, told apart by the published MD5s of their contents.

IDX is big-endian sizes, then bytes; plain or compressed by gzip.
"""

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from metalmark.data.dataset import Dataset, ImageSplit, Pixels, array_digest
from metalmark.data.fetch import PUBLISHED
from metalmark.data.files import damaged, md5_of_bytes, unpacked
from metalmark.errors import FormatError

SIDE = 28
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
CONTENT_MD5 = {name: PUBLISHED[name].contents for name in CLASSES}
UNSIGNED_BYTE = 0x08
MAX_BYTES = 2**30
"""MNIST's largest file has 47 MB. A header that asks for more than this is damage or malice."""
CHUNK_BYTES = 2**20
CONTENTS = {1: "labels", 3: "images"}


def find_idx(folder: Path) -> dict[str, Path]:
    """Return the IDX files of a folder by their usual names: plain or .gz, `-idx3-ubyte` or `.idx3-ubyte`."""
    found: dict[str, Path] = {}
    for name in FILES:
        stem, _, kind = name.partition("-idx")
        spellings = (f"{stem}{sign}idx{kind}{packed}" for packed in ("", ".gz") for sign in "-.")
        present = [folder / spelling for spelling in spellings if (folder / spelling).is_file()]
        if present:
            found[name] = present[0]
    return found


def load_mnist(name: str, folder: Path) -> Dataset:
    """Load `name`, mnist or fashion-mnist, from a folder with the four files."""
    found = find_idx(folder)
    missing = [file for file in FILES if file not in found]
    if missing:
        raise FormatError(
            f"{folder} has no {missing[0]}, nor {missing[0]}.gz.",
            hint=f"{name} needs four IDX files, each plain or .gz: {', '.join(FILES)}.",
        )
    arrays = [read_idx(found[file], dimensions=1 if "labels" in file else 3) for file in FILES]
    md5s = tuple(md5_of_bytes(idx_bytes(array)) for array in arrays)
    for other, theirs in CONTENT_MD5.items():
        # Only the contents tell the two apart, and training takes either without a word.
        if other != name and set(md5s) & set(theirs):
            raise FormatError(f"{folder} holds {other}, not {name}.", hint=f"Give {name}'s own folder.")
    train = _split(name, arrays[0], arrays[1], found[FILES[0]], found[FILES[1]])
    validation = _split(name, arrays[2], arrays[3], found[FILES[2]], found[FILES[3]])
    state = "official files, md5 verified" if md5s == CONTENT_MD5[name] else "given files, not the official ones"
    digest = array_digest(train, validation)
    return Dataset(name=name, source=f"{name}, {state}", train=train, validation=validation, digest=digest)


def _split(name: str, images: Pixels, labels: Pixels, images_path: Path, labels_path: Path) -> ImageSplit:
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise damaged(images_path, f"{name}'s images", f"they are {size}, and {name}'s are {SIDE} x {SIDE}")
    if len(images) == 0:
        raise damaged(images_path, f"{name}'s images", "it holds none")
    if len(images) != len(labels):
        raise damaged(labels_path, f"{name}'s labels", f"it has {len(labels):,} labels for {len(images):,} images")
    if labels.max() >= len(CLASSES[name]):
        raise damaged(labels_path, f"{name}'s labels", f"it has the label {labels.max()}, and the last is 9")
    return ImageSplit(images=images[..., np.newaxis], labels=labels.astype(np.int32), classes=CLASSES[name])


def read_idx(path: Path, *, dimensions: int) -> Pixels:
    """Return the array in that file, read-only: 3 dimensions for images, 1 for labels."""
    with unpacked(path, "IDX") as stream:
        return _parse(path, stream, dimensions)


def idx_bytes(array: Pixels) -> bytes:
    """Return the array as an IDX file has it, uncompressed: hashes of those are published."""
    return struct.pack(f">4B{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape) + array.tobytes()


def _parse(path: Path, stream: IO[bytes], dimensions: int) -> Pixels:
    magic = _take(stream, 4)
    if len(magic) < 4:
        raise damaged(path, "IDX", f"it ends within its first 4 bytes, after {len(magic)}")
    if magic[:2] != b"\x00\x00":
        raise damaged(path, "IDX", f"it starts with {magic.hex(' ')}, and IDX starts with 00 00")
    if magic[2] != UNSIGNED_BYTE:
        raise damaged(path, "IDX", f"its values have type 0x{magic[2]:02x}, not unsigned bytes (0x08)")
    if magic[3] != dimensions:
        why = f"it has {magic[3]} dimensions and {CONTENTS.get(dimensions, 'these')} have {dimensions}"
        raise damaged(path, "IDX", why, hint="Check that the images' and the labels' file are not exchanged.")
    sizes = _take(stream, 4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise damaged(path, "IDX", f"it ends within its header, after {4 + len(sizes)} bytes")
    shape = struct.unpack(f">{dimensions}I", sizes)
    wanted_bytes = math.prod(shape)
    described = " x ".join(map(str, shape))
    if wanted_bytes > MAX_BYTES:
        raise damaged(path, "IDX", f"its header asks for {described} bytes, more than any such file holds")
    data = _take(stream, wanted_bytes + 1)
    if len(data) < wanted_bytes:
        why = f"its header promises {described} bytes and {len(data):,} are there: it is cut short"
        raise damaged(path, "IDX", why)
    if len(data) > wanted_bytes:
        raise damaged(path, "IDX", f"there are bytes after the {described} that its header promises")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _take(stream: IO[bytes], count: int) -> bytes:
    """Read up to `count` bytes, in pieces, so that a lying header does not reserve memory for what is not there."""
    pieces: list[bytes] = []
    while count > 0 and (piece := stream.read(min(count, CHUNK_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
