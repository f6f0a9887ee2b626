"""MNIST and Fashion-MNIST: four IDX files of the same names, told apart by the published MD5s of their contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metalmark.data.idx import idx_bytes, read_idx
from metalmark.data.split import Dataset, Pixels, Split, array_digest
from metalmark.data.trouble import damaged, md5_of_bytes
from metalmark.errors import FormatError

SIDE = 28
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
# Of the uncompressed files: packing them again, as Debian does, changes the .gz and not these.
CONTENT_MD5: dict[str, tuple[str, ...]] = {
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion-mnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}


def find_idx(folder: Path) -> dict[str, Path]:
    """The IDX files of a folder by their usual names: plain or .gz, `-idx3-ubyte` or `.idx3-ubyte`."""
    found: dict[str, Path] = {}
    for name in FILES:
        stem, _, kind = name.partition("-idx")
        spellings = (f"{stem}{sign}idx{kind}{packed}" for packed in ("", ".gz") for sign in "-.")
        present = [folder / spelling for spelling in spellings if (folder / spelling).is_file()]
        if present:
            found[name] = present[0]
    return found


def load_mnist(name: str, folder: Path) -> Dataset:
    """`name`, mnist or fashion-mnist, from a folder with the four files."""
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
    official = md5s == CONTENT_MD5[name]
    return Dataset(
        name=name,
        source=f"{name}, official files, md5 verified" if official else f"{name}, given files, not the official ones",
        train=train,
        validation=validation,
        digest=array_digest(train, validation),
    )


def _split(name: str, images: Pixels, labels: Pixels, images_path: Path, labels_path: Path) -> Split:
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise damaged(str(images_path), f"{name}'s images", f"they are {size}, and {name}'s are {SIDE} x {SIDE}")
    if len(images) == 0:
        raise damaged(str(images_path), f"{name}'s images", "it holds none")
    if len(images) != len(labels):
        raise damaged(str(labels_path), f"{name}'s labels", f"it has {len(labels):,} labels for {len(images):,} images")
    if labels.max() >= len(CLASSES[name]):
        raise damaged(str(labels_path), f"{name}'s labels", f"it has the label {labels.max()}, and the last is 9")
    return Split(images=images[..., np.newaxis], labels=labels.astype(np.int32), classes=CLASSES[name])
