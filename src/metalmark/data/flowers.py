"""Flowers-102 as its authors publish it: jpg/image_NNNNN.jpg, imagelabels.mat and setid.mat.

The experiment's 6552/818/819 images are a split of its own, never published as lists; the authors' is 1020/1020/6149.
As most tutorials do, training takes the authors' large test set; the missing 403 come from their other two sets,
evenly over the classes, and what is left of those is halved into validation and test.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metalmark.data.archive import read_members
from metalmark.data.encoded import EncodedImages, FilesIn, Held
from metalmark.data.folder import HEAD_BYTES, fingerprint
from metalmark.data.mat import MOST_BYTES, read_mat
from metalmark.data.registry import REGISTRY
from metalmark.data.split import Dataset, Split
from metalmark.data.trouble import damaged, md5_of, read_bounded, unreadable
from metalmark.errors import FormatError

ARCHIVE, LABELS, SETS = "102flowers.tgz", "imagelabels.mat", "setid.mat"
CLASSES = tuple(str(number) for number in range(1, 103))
"""The files give classes numbers and no names."""
IMAGE = re.compile(r"image_\d{5}\.jpg")
MOST_IMAGES = 99_999
ARCHIVE_BYTES, IMAGE_BYTES = 2**30, 2**24

Ids = npt.NDArray[np.int64]


def is_flowers(path: Path) -> bool:
    return (path / LABELS).is_file() or (path / SETS).is_file()


def load_flowers(path: Path, *, pixels: int) -> Dataset:
    for name in (LABELS, SETS):
        if not (path / name).is_file():
            raise FormatError(f"{path} has no {name}.", hint=f"Put {REGISTRY['flowers-102'].address}{name} there.")
    labels = _numbers(path / LABELS, "labels")
    sets = {name: _numbers(path / SETS, name) for name in ("trnid", "valid", "tstid")}
    parts = divide(labels, sets["trnid"], sets["valid"], sets["tstid"], path / SETS)
    if labels.min() < 1 or labels.max() > len(CLASSES):
        raise damaged(str(path / LABELS), "Flowers-102's labels", f"they go from {labels.min()} to {labels.max()}")
    read, facts = _images(path, len(labels))
    splits = [
        Split(
            images=EncodedImages(tuple(image_name(number) for number in ids), read, pixels),
            labels=(labels[ids - 1] - 1).astype(np.int32),
            classes=CLASSES,
        )
        for ids in parts
    ]
    digest = hashlib.sha256()
    for split, ids in zip(splits, parts, strict=True):
        for number, label in zip(ids, split.labels, strict=True):
            digest.update(f"{number} {label} {facts[number - 1]}\n".encode())
    train, validation, test = splits
    sizes = "/".join(str(len(split)) for split in splits)
    state = "official files, md5 verified" if _official(path) else "given files, not verified"
    return Dataset(
        name="flowers-102",
        source=f"flowers-102, {state}; split {sizes}, training on the official test set and a part of the others",
        train=train,
        validation=validation,
        test=test,
        digest=digest.hexdigest(),
    )


def image_name(number: int) -> str:
    return f"image_{number:05d}.jpg"


def divide(labels: Ids, training: Ids, validation: Ids, test: Ids, path: Path) -> tuple[Ids, Ids, Ids]:
    """Train, validation and test, as numbers of images from 1: four fifths, and the rest halved."""
    every = np.concatenate([training, validation, test])
    if len(labels) > MOST_IMAGES or sorted(every.tolist()) != list(range(1, len(labels) + 1)):
        raise damaged(str(path), "Flowers-102's sets", f"they are not each of the {len(labels):,} images once")
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
        raise damaged(str(path), "Flowers-102's sets", "they leave nothing to train, validate or test on")
    return parts


def _numbers(path: Path, name: str) -> Ids:
    arrays = read_mat(read_bounded(path, "a MATLAB 5 file", MOST_BYTES), str(path))
    if name not in arrays or arrays[name].dtype.kind not in "iu" or arrays[name].size == 0:
        raise damaged(str(path), "Flowers-102's numbers", f"it has no whole numbers called {name}")
    return arrays[name].ravel().astype(np.int64)


def _images(path: Path, count: int) -> tuple[FilesIn | Held, list[str]]:
    """How to read the images, and a line about each, in order: from jpg/ if it was unpacked, else from the archive."""
    names = [image_name(number) for number in range(1, count + 1)]
    if (path / "jpg").is_dir():
        missing = next((name for name in names if not (path / "jpg" / name).is_file()), None)
        place = path / "jpg"
        read: FilesIn | Held = FilesIn(place)
    elif (path / ARCHIVE).is_file():
        place = path / ARCHIVE
        held = read_members(
            place, lambda name: IMAGE.fullmatch(name) is not None, most_bytes=ARCHIVE_BYTES, member_bytes=IMAGE_BYTES
        )
        missing = next((name for name in names if name not in held), None)
        read = Held(held)
    else:
        raise FormatError(
            f"{path} has neither {ARCHIVE} nor the folder jpg/ that it unpacks to.",
            hint=f"Put {REGISTRY['flowers-102'].address}{ARCHIVE} there.",
        )
    if missing is not None:
        raise FormatError(f"{place} has no {missing}, and {LABELS} gives it a label.", hint=f"Unpack {ARCHIVE} again.")
    return read, [_fact(read, name) for name in names]


def _fact(read: FilesIn | Held, name: str) -> str:
    if isinstance(read, Held):
        content = read(name)
        return f"{len(content)} {fingerprint(content)}"
    path = read.folder / name
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            return f"{stream.seek(0, 2)} {fingerprint(head)}"
    except OSError as error:
        raise unreadable(path, error) from error


def _official(path: Path) -> bool:
    """The three published MD5s; of images that were unpacked nothing is published."""
    if (path / "jpg").is_dir():
        return False
    return all(md5_of(path / name) == md5 for name, md5 in REGISTRY["flowers-102"].files.items())
