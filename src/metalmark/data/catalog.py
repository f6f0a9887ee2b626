"""Name and choice → Dataset: `real` fetches, `synthetic` makes, and a path is read as what it turns out to hold."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from metalmark.data.cifar import find_batches, load_cifar
from metalmark.data.dataset import Dataset
from metalmark.data.fetch import fetch
from metalmark.data.flowers import is_flowers, load_flowers
from metalmark.data.folder import has_folders, load_folder
from metalmark.data.mnist import FILES, find_idx, load_mnist
from metalmark.data.synthetic import load_synthetic
from metalmark.data.table import load_csv, load_npz, load_parquet
from metalmark.data.text import load_synthetic_text, load_text, looks_like_text
from metalmark.errors import FormatError, UsageError, did_you_mean
from metalmark.model.workload import Task

REAL, SYNTHETIC, OWN = "real", "synthetic", "own"
PIXELS = 256
"""The side of images that come in all sizes: room to crop 224 from."""


class DataFormat(StrEnum):
    """What a path may hold."""

    IDX = "IDX files"
    CIFAR = "CIFAR-10 batches"
    FLOWERS = "Flowers-102's published files"
    TREE = "class folders of images"
    CSV = "a table of comma-separated values"
    NPZ = "NumPy arrays"
    PARQUET = "a Parquet table"
    TEXT = "text"


ACCEPTED: dict[str, tuple[DataFormat, ...]] = {
    "mnist": (DataFormat.IDX,),
    "fashion-mnist": (DataFormat.IDX,),
    "cifar-10": (DataFormat.CIFAR,),
    "flowers-102": (DataFormat.FLOWERS, DataFormat.TREE),
    "folder": (DataFormat.TREE,),
    "table": (DataFormat.CSV, DataFormat.NPZ, DataFormat.PARQUET),
    "text": (DataFormat.TEXT,),
}
YOURS = {"folder": "A folder of images", "table": "A table", "text": "A text file"}
"""Names that stand for files of the user's own."""
SUFFIXES = {
    ".csv": DataFormat.CSV,
    ".tsv": DataFormat.CSV,
    ".npz": DataFormat.NPZ,
    ".parquet": DataFormat.PARQUET,
    ".pq": DataFormat.PARQUET,
}
EXPECTED: dict[DataFormat, str] = {
    DataFormat.IDX: f"a folder with {', '.join(FILES)}, each plain or .gz",
    DataFormat.CIFAR: "cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or the folder that one unpacks to",
    DataFormat.FLOWERS: "a folder with 102flowers.tgz (or jpg/), imagelabels.mat and setid.mat",
    DataFormat.TREE: "a folder of class/image.jpg, with or without train/ and valid/ above the classes",
    DataFormat.CSV: "a .csv file with a line of names at its top",
    DataFormat.NPZ: "an .npz file with the arrays x and y (or x_train, y_train, x_test, y_test)",
    DataFormat.PARQUET: "a .parquet file",
    DataFormat.TEXT: "a text file in UTF-8",
}


@dataclass(frozen=True, kw_only=True)
class FileReading:
    """How files are read; each kind of file takes what concerns it."""

    pixels: int = PIXELS
    """The side that photographs of all sizes are brought to."""
    seq_len: int | None = None
    """Tokens of a sample of text."""
    target_column: str = ""
    task: Task | None = None


AS_USUAL = FileReading()


def load(name: str, choice: str, seed: int = 0, *, reading: FileReading = AS_USUAL) -> Dataset:
    if name not in ACCEPTED:
        near = did_you_mean(name, ACCEPTED)
        raise UsageError(f"There is no data set {name!r}{near}", hint=f"Data sets: {', '.join(ACCEPTED)}.")
    if choice == SYNTHETIC:
        if name == "text":
            return load_synthetic_text(seed=seed, seq_len=reading.seq_len)
        return load_synthetic(name, seed=seed, pixels=reading.pixels)
    if choice != REAL:
        return _read(name, Path(choice).expanduser(), reading)
    if name in YOURS:
        expected = f"Expected: {_expected(ACCEPTED[name])}."
        raise UsageError(f"{YOURS[name]} can't be downloaded: it is yours.", hint=f"Give it: --data PATH. {expected}")
    files = list(fetch(name).values())
    return _read(name, files[0] if len(files) == 1 else files[0].parent, reading)


def load_path(path: Path, *, reading: FileReading = AS_USUAL) -> Dataset:
    """Read files of a user's own for a workload that names no data set: any of the kinds that hold samples as such."""
    kinds = tuple(kind for name in YOURS for kind in ACCEPTED[name])
    _require_path(path, kinds)
    kind = format_of(path)
    for name in YOURS:
        if kind in ACCEPTED[name]:
            return _read(name, path, reading)
    held = kind.value if kind else "none of the known data formats"
    raise FormatError(f"{path} holds {held}.", hint=f"Expected: {_expected(kinds)}.")


def _read(name: str, path: Path, reading: FileReading) -> Dataset:
    _require_path(path, ACCEPTED[name])
    kind = format_of(path)
    if kind is None or kind not in ACCEPTED[name]:
        raise FormatError(
            f"{path} holds {kind.value if kind else 'none of the known data formats'}, which {name} is not read from.",
            hint=f"Expected: {_expected(ACCEPTED[name])}.",
        )
    if reading.target_column and name != "table":
        raise UsageError(
            f"--target-column {reading.target_column}: {path} holds {kind.value}, which has no columns.",
            hint="Leave it out; it is for CSV, NPZ and Parquet.",
        )
    match kind:
        case DataFormat.IDX:
            return load_mnist(name, path)
        case DataFormat.FLOWERS:
            return load_flowers(path, pixels=reading.pixels)
        case DataFormat.CIFAR:
            batches = find_batches(path)
            assert batches is not None
            return load_cifar(batches)
        case DataFormat.TREE:
            return load_folder(path, pixels=reading.pixels, name=name)
        case DataFormat.CSV:
            return load_csv(path, target=reading.target_column, task=reading.task)
        case DataFormat.NPZ:
            return load_npz(path, target=reading.target_column)
        case DataFormat.PARQUET:
            return load_parquet(path, target=reading.target_column, task=reading.task)
        case DataFormat.TEXT:
            return load_text(path, seq_len=reading.seq_len)


def _require_path(path: Path, kinds: tuple[DataFormat, ...]) -> None:
    if not path.exists():
        raise UsageError(
            f"There is no file or folder {path}.",
            hint=f"--data takes {REAL}, {SYNTHETIC} or a path: {_expected(kinds)}.",
        )


def format_of(path: Path) -> DataFormat | None:
    """By the names that are there; the readers then judge the contents."""
    if find_batches(path) is not None:
        return DataFormat.CIFAR
    if not path.is_dir():
        return SUFFIXES.get(path.suffix.lower()) or (DataFormat.TEXT if looks_like_text(path) else None)
    if find_idx(path):
        return DataFormat.IDX
    if is_flowers(path):
        return DataFormat.FLOWERS
    return DataFormat.TREE if has_folders(path) else None


def _expected(kinds: tuple[DataFormat, ...]) -> str:
    return ", or ".join(EXPECTED[kind] for kind in kinds)
