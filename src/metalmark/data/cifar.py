"""CIFAR-10: five training batches and one test batch, binary or pickled, in a folder or a .tar.gz."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metalmark.data.archive import read_members
from metalmark.data.registry import REGISTRY
from metalmark.data.split import Dataset, Labels, Pixels, Split, array_digest
from metalmark.data.trouble import damaged, md5_of, md5_of_bytes, read_bounded
from metalmark.data.unpickle import KIND, read_batch
from metalmark.errors import FormatError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE * CHANNELS
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
PICKLES = (*TRAIN, TEST)
BINARIES = tuple(f"{name}.bin" for name in PICKLES)
FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
ARCHIVES = {**REGISTRY["cifar-10"].files, **REGISTRY["cifar-10"].instead}
PICKLE_MD5 = (
    "c99cafc152244af753f735de768cd75f",
    "d4bba439e000b95fd0a9bffe97cbabec",
    "54ebc095f3ab1f0389bbae665268c751",
    "634d18415352ddfa80567beed471001a",
    "482c414d41f54cd18b22e5b47cb7c3cb",
    "40351d587109b95175f43aff81a1287e",
)
BATCH_BYTES = 2**26
"""An official batch has 31 MB."""
ARCHIVE_BYTES = 2**29

Part = tuple[Pixels, Labels]


def find_batches(path: Path) -> Path | None:
    """The folder or archive of batches that this path is or holds."""
    if path.is_file():
        return path if path.name.endswith((".tar.gz", ".tgz", ".tar")) else None
    for inside in FOLDERS:
        if any((path / inside / name).is_file() for name in (*BINARIES, *PICKLES)):
            return path / inside
    return next((path / name for name in ARCHIVES if (path / name).is_file()), None)


def load_cifar(place: Path) -> Dataset:
    """From what `find_batches` found."""
    packed = place.is_file()
    files = _from_archive(place) if packed else _from_folder(place)
    names = BINARIES if set(BINARIES) & set(files) else PICKLES
    missing = [name for name in names if name not in files]
    if missing:
        raise FormatError(
            f"{place} has no {missing[0]}.", hint=f"CIFAR-10 is six files: {', '.join(names)}; all must be there."
        )
    if packed:
        official = md5_of(place) in ARCHIVES.values()
    else:
        official = tuple(md5_of_bytes(files[name]) for name in names) == PICKLE_MD5
    read = read_binary if names is BINARIES else read_pickle
    parts = [read(files.pop(name), str(place / name)) for name in names]
    train = _split(parts[:-1])
    validation = _split(parts[-1:])
    return Dataset(
        name="cifar-10",
        source="cifar-10, official files, md5 verified" if official else "cifar-10, given files, not verified",
        train=train,
        validation=validation,
        digest=array_digest(train, validation),
    )


def read_binary(data: bytes, name: str) -> Part:
    """Rows of a label and 3,072 bytes: the red plane, the green, the blue."""
    row = 1 + PIXELS
    if len(data) == 0 or len(data) % row:
        raise damaged(name, KIND, f"its {len(data):,} bytes are not whole rows of {row:,}: it is cut short or another")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return _part(rows[:, 1:], rows[:, 0].astype(np.int32), name)


def read_pickle(data: bytes, name: str) -> Part:
    rows, labels = read_batch(data, name)
    if rows.shape[1] != PIXELS or len(rows) == 0:
        raise damaged(name, KIND, f"its array is {rows.shape[0]} x {rows.shape[1]}, not rows of {PIXELS:,}")
    if len(labels) != len(rows):
        raise damaged(name, KIND, f"it has {len(labels):,} labels for {len(rows):,} images")
    # Through Python's integers: a label of any size is compared, and none wraps.
    in_range = [label if 0 <= label < len(CLASSES) else len(CLASSES) for label in labels]
    return _part(rows, np.array(in_range, np.int32), name)


def _part(rows: Pixels, labels: Labels, name: str) -> Part:
    if labels.max() >= len(CLASSES):
        raise damaged(name, KIND, f"it has labels outside 0 to {len(CLASSES) - 1}")
    planes = rows.reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _split(parts: list[Part]) -> Split:
    return Split(
        images=np.concatenate([images for images, _ in parts]),
        labels=np.concatenate([labels for _, labels in parts]),
        classes=CLASSES,
    )


def _from_archive(path: Path) -> dict[str, bytes]:
    wanted = {*BINARIES, *PICKLES}
    return read_members(path, wanted.__contains__, most_bytes=ARCHIVE_BYTES, member_bytes=BATCH_BYTES)


def _from_folder(folder: Path) -> dict[str, bytes]:
    names = BINARIES if any((folder / name).is_file() for name in BINARIES) else PICKLES
    return {name: read_bounded(folder / name, KIND, BATCH_BYTES) for name in names if (folder / name).is_file()}
