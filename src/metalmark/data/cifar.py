"""CIFAR-10: five training batches and one test batch, binary or pickled, in a folder or a .tar.gz.

A pickle may name any function to call; here it may call none. The three NumPy names that the Python batches use are
answered with stand-ins that only take notes, and the array is then made from the notes. Any other name is refused
before anything happens.
"""

import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from metalmark.data.dataset import Dataset, ImageSplit, Labels, Pixels, array_digest
from metalmark.data.fetch import PUBLISHED
from metalmark.data.files import damaged, md5_of, md5_of_bytes, read_bounded, read_members
from metalmark.errors import FormatError

KIND = "a CIFAR-10 batch"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE * CHANNELS
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
PICKLES = (*TRAIN, TEST)
BINARIES = tuple(f"{name}.bin" for name in PICKLES)
FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
ARCHIVES = {**PUBLISHED["cifar-10"].files, **PUBLISHED["cifar-10"].instead}
BATCH_BYTES = 2**26
"""An official batch has 31 MB."""
ARCHIVE_BYTES = 2**29

LabelledImages = tuple[Pixels, Labels]

STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "class",
    ("numpy", "dtype"): "dtype",
}
# Lists, dictionaries, tuples, numbers, text, memo, and the call of a (refused or stand-in) name. No others:
# one of the rest reserves whatever memory it is asked for, and these make objects of classes in other ways.
MAKERS = "INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID"
OPCODES = """
    PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    GLOBAL STACK_GLOBAL REDUCE BUILD
"""
# What the unpickler raises on damaged files; it promises only UnpicklingError.
PICKLE_ERRORS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error,
)  # fmt: skip


def find_batches(path: Path) -> Path | None:
    """Return the folder or archive of batches that this path is or contains."""
    if path.is_file():
        return path if path.name.endswith((".tar.gz", ".tgz", ".tar")) else None
    for inside in FOLDERS:
        if any((path / inside / name).is_file() for name in (*BINARIES, *PICKLES)):
            return path / inside
    return next((path / name for name in ARCHIVES if (path / name).is_file()), None)


def load_cifar(path: Path) -> Dataset:
    """Load the folder or archive that `find_batches` returned."""
    known = {*BINARIES, *PICKLES}
    if packed := path.is_file():
        files = read_members(path, known.__contains__, max_bytes=ARCHIVE_BYTES, member_bytes=BATCH_BYTES)
    else:
        found = {name for name in known if (path / name).is_file()}
        chosen = found & set(BINARIES) or found
        files = {name: read_bounded(path / name, KIND, BATCH_BYTES) for name in chosen}
    names = BINARIES if set(BINARIES) & set(files) else PICKLES
    missing = [name for name in names if name not in files]
    if missing:
        raise FormatError(
            f"{path} has no {missing[0]}.", hint=f"CIFAR-10 is six files: {', '.join(names)}; all must be there."
        )
    if packed:
        official = md5_of(path) in ARCHIVES.values()
    else:
        official = tuple(md5_of_bytes(files[name]) for name in names) == PUBLISHED["cifar-10"].contents
    read = read_binary if names is BINARIES else read_pickle
    parts = [read(files.pop(name), str(path / name)) for name in names]
    train, validation = _split(parts[:-1]), _split(parts[-1:])
    source = "cifar-10, official files, md5 verified" if official else "cifar-10, given files, not verified"
    digest = array_digest(train, validation)
    return Dataset(name="cifar-10", source=source, train=train, validation=validation, digest=digest)


def read_binary(data: bytes, name: str) -> LabelledImages:
    """Read rows of a label and 3,072 bytes: the red plane, the green, the blue."""
    row = 1 + PIXELS
    if len(data) == 0 or len(data) % row:
        raise damaged(name, KIND, f"its {len(data):,} bytes are not whole rows of {row:,}: it is cut short or another")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return _part(rows[:, 1:], rows[:, 0].astype(np.int32), name)


def read_pickle(data: bytes, name: str) -> LabelledImages:
    rows, labels = unpickle_batch(data, name)
    if rows.shape[1] != PIXELS or len(rows) == 0:
        raise damaged(name, KIND, f"its array is {rows.shape[0]} x {rows.shape[1]}, not rows of {PIXELS:,}")
    if len(labels) != len(rows):
        raise damaged(name, KIND, f"it has {len(labels):,} labels for {len(rows):,} images")
    # Through Python's integers: a label of any size is compared, and none wraps.
    in_range = [label if 0 <= label < len(CLASSES) else len(CLASSES) for label in labels]
    return _part(rows, np.array(in_range, np.int32), name)


def _part(rows: Pixels, labels: Labels, name: str) -> LabelledImages:
    if labels.max() >= len(CLASSES):
        raise damaged(name, KIND, f"it has labels outside 0 to {len(CLASSES) - 1}")
    planes = rows.reshape(-1, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _split(parts: list[LabelledImages]) -> ImageSplit:
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ImageSplit(images=images, labels=labels, classes=CLASSES)


class PickleNote:
    """What the pickle asked to be made; it is not made."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments, self.state = kind, arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class StandIn:
    """Stands in for one of NumPy's functions, and only notes how it was called."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, *arguments: Any) -> PickleNote:
        return PickleNote(self.kind, arguments)

    def __setstate__(self, _: Any) -> None:
        raise pickle.UnpicklingError("it changes a function")


# The version written in Python: the one in C reserves memory for as large a memo number as a file cares to name.
class BatchUnpickler(pickle._Unpickler):
    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._name = name

    def find_class(self, module: str, name: str) -> StandIn:
        kind = STAND_INS.get((module, name))
        if kind is None:
            raise self._refusal(f"{module}.{name}")
        return StandIn(kind)

    def _refuse(self) -> None:
        raise self._refusal("an object of a class")

    def _refusal(self, what: str) -> FormatError:
        return damaged(
            self._name,
            KIND,
            f"it tries to run code ({what}), which none of them does; nothing of it was run",
            hint="Do not open it with anything else. Take the file from https://www.cs.toronto.edu/~kriz/cifar.html",
        )

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys((getattr(pickle, name)[0] for name in MAKERS.split()), _refuse),
        **{code: pickle._Unpickler.dispatch[code] for name in OPCODES.split() for code in getattr(pickle, name)},
    }


def unpickle_batch(data: bytes, name: str) -> tuple[Pixels, list[int]]:
    """Return the rows and the labels of a pickled batch."""
    try:
        batch = BatchUnpickler(data, name).load()
    except FormatError:
        raise
    except (*PICKLE_ERRORS, RecursionError, MemoryError) as error:
        why = f"it is damaged or holds more than rows and labels ({type(error).__name__}: {error})"
        raise damaged(name, KIND, why[:200]) from error
    if not isinstance(batch, dict):
        raise damaged(name, KIND, f"it holds a {type(batch).__name__}, not a dictionary")
    texts = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = texts.get("labels")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        fix = " (CIFAR-100 has fine_labels; CIFAR-10 is wanted)" if "fine_labels" in texts else ""
        raise damaged(name, KIND, f"it has no list of whole numbers called labels{fix}")
    return _noted_array(texts.get("data"), name), labels


def _noted_array(note: Any, name: str) -> Pixels:
    """Return the array of bytes that the notes describe, if they describe one."""
    if not isinstance(note, PickleNote) or note.kind != "array":
        raise damaged(name, KIND, "it has no array called data")
    match note.state:
        case (int(), tuple() as shape, PickleNote(kind="dtype") as dtype, bool() | int() as by_column, bytes() as raw):
            pass
        case _:
            raise damaged(name, KIND, "its array is not written as NumPy writes one")
    if dtype.arguments[:1] not in (("u1",), (b"u1",)):
        raise damaged(name, KIND, "its array is not of bytes (uint8)")
    if len(shape) != 2 or not all(type(size) is int and size >= 0 for size in shape) or shape[0] * shape[1] != len(raw):
        raise damaged(name, KIND, f"its array's shape does not fit its {len(raw):,} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")
