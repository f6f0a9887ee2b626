"""Name and choice → Dataset: `real` fetches, `synthetic` makes, and a path is read as what it turns out to hold."""

from enum import StrEnum
from pathlib import Path

from metalmark.data.cifar import find_batches, load_cifar
from metalmark.data.dataset import Dataset
from metalmark.data.fetch import fetch
from metalmark.data.flowers import is_flowers, load_flowers
from metalmark.data.folder import WANTED, has_folders, load_folder
from metalmark.data.mnist import FILES, find_idx, load_mnist
from metalmark.data.synthetic import load_synthetic
from metalmark.errors import FormatError, UsageError, did_you_mean

REAL, SYNTHETIC = "real", "synthetic"
PIXELS = 256
"""The side of images that come in all sizes: room to crop 224 from."""


class DataFormat(StrEnum):
    """What a path may hold."""

    IDX = "IDX files"
    CIFAR = "CIFAR-10 batches"
    FLOWERS = "Flowers-102's published files"
    TREE = "class folders of images"


ACCEPTED: dict[str, tuple[DataFormat, ...]] = {
    "mnist": (DataFormat.IDX,),
    "fashion-mnist": (DataFormat.IDX,),
    "cifar-10": (DataFormat.CIFAR,),
    "flowers-102": (DataFormat.FLOWERS, DataFormat.TREE),
    "folder": (DataFormat.TREE,),
}
EXPECTED: dict[DataFormat, str] = {
    DataFormat.IDX: f"a folder with {', '.join(FILES)}, each plain or .gz",
    DataFormat.CIFAR: "cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or the folder that one unpacks to",
    DataFormat.FLOWERS: "a folder with 102flowers.tgz (or jpg/), imagelabels.mat and setid.mat",
    DataFormat.TREE: "a folder of class/image.jpg, with or without train/ and valid/ above the classes",
}


def load(name: str, choice: str, seed: int = 0, *, pixels: int = PIXELS) -> Dataset:
    """`pixels` is the side that photographs of all sizes are brought to; it changes nothing else."""
    if name not in ACCEPTED:
        near = did_you_mean(name, ACCEPTED)
        raise UsageError(f"There is no data set {name!r}{near}", hint=f"Data sets: {', '.join(ACCEPTED)}.")
    if choice == SYNTHETIC:
        return load_synthetic(name, seed=seed, pixels=pixels)
    if choice != REAL:
        return _read(name, Path(choice).expanduser(), pixels)
    if name == "folder":
        raise UsageError("A folder of images can't be downloaded: it is yours.", hint=f"Give it: --data PATH. {WANTED}")
    files = list(fetch(name).values())
    return _read(name, files[0] if len(files) == 1 else files[0].parent, pixels)


def _read(name: str, path: Path, pixels: int) -> Dataset:
    if not path.exists():
        raise UsageError(
            f"There is no file or folder {path}.",
            hint=f"--data takes {REAL}, {SYNTHETIC} or a path: {_expected(name)}.",
        )
    kind = format_of(path)
    if kind not in ACCEPTED[name]:
        raise FormatError(
            f"{path} holds {kind.value if kind else 'none of the known data formats'}, which {name} is not read from.",
            hint=f"Expected: {_expected(name)}.",
        )
    if kind is DataFormat.IDX:
        return load_mnist(name, path)
    if kind is DataFormat.FLOWERS:
        return load_flowers(path, pixels=pixels)
    batches = find_batches(path)
    if kind is DataFormat.CIFAR and batches is not None:
        return load_cifar(batches)
    return load_folder(path, pixels=pixels, name=name)


def format_of(path: Path) -> DataFormat | None:
    """By the names that are there; the readers then judge the contents."""
    if find_batches(path) is not None:
        return DataFormat.CIFAR
    if not path.is_dir():
        return None
    if find_idx(path):
        return DataFormat.IDX
    if is_flowers(path):
        return DataFormat.FLOWERS
    return DataFormat.TREE if has_folders(path) else None


def _expected(name: str) -> str:
    return ", or ".join(EXPECTED[kind] for kind in ACCEPTED[name])
