"""Where a network's weights come from: nowhere, the published file in the user's cache, or a file of the user's own.

Every message says all there is to say in one line: it crosses to the command's process as a failed cell.
"""

import hashlib
import io
import math
import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from metalmark.downloads import CACHE_VARIABLE, cache_folder, download_error, downloaded
from metalmark.errors import FormatError, NotInstalledError, WeightsError
from metalmark.model.codec import read_json

ConfigKind = TypeVar("ConfigKind", bound=Struct)
CONFIG = "config.json"
NONE, IMAGENET = "none", "imagenet"
BASE_URL = "https://download.pytorch.org/models/"
PUBLISHED = {
    "resnet50": "resnet50-0676ba61.pth",
    "mobilenet_v2": "mobilenet_v2-b0353104.pth",
    "vgg16": "vgg16-397923af.pth",
}
"""torchvision's files; the name of each ends in the beginning of its SHA-256."""
CHECKPOINT = ("model.safetensors", "pytorch_model.bin")
"""The arrays of a checkpoint in the hub's layout: its folder has one of them, and config.json."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file from before PyTorch 1.6, which is not a zip archive."""
MOST_EXPANDED = 1 << 24
"""Number of elements that a tensor may have though its storage has fewer: a step of 0 repeats one element for ever."""
MOST_REASON = 300
DTYPES: dict[str, np.dtype[Any]] = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


def find(word: str, architecture: str) -> Path | None:
    """The file that `--weights` names; None for none. Downloads what `imagenet` stands for, once, checked."""
    if word == NONE:
        return None
    if word == IMAGENET:
        return _published(PUBLISHED[architecture])
    with _known_home(word):
        path = Path(word).expanduser()
    if path.is_file():
        return path
    what = "is a folder" if path.is_dir() else "is no file here"
    raise WeightsError(
        f"--weights {path.name or word}: this {what}. Give none, imagenet, or a .safetensors or .pth file."
    )


def checkpoint_file(word: str, architecture: str) -> Path:
    """Return the file with the arrays of a checkpoint that `--weights` names, by its folder or by that file."""
    with _known_home(word):
        folder = Path(word).expanduser()
    if folder.is_dir():
        for name in CHECKPOINT:
            if (folder / name).is_file():
                return folder / name
        raise WeightsError(
            f"--weights {folder.name}: this folder has neither {' nor '.join(CHECKPOINT)}. "
            f"Give a checkpoint's own folder: one of them, and config.json."
        )
    path = find(word, architecture)
    assert path is not None
    return path


def read_config(word: str, architecture: str, kind: type[ConfigKind], *, network: str) -> ConfigKind:
    """Return what config.json beside a checkpoint's arrays says of its network, which is called `network`."""
    path = checkpoint_file(word, architecture).with_name(CONFIG)
    try:
        return read_json(path.read_bytes(), kind, source=CONFIG)
    except OSError as error:
        raise WeightsError(
            f"--weights needs the checkpoint's {CONFIG} beside its arrays, and it can't be read: {error.strerror}. "
            f"The hub has both in one folder: put them together."
        ) from error
    except FormatError as error:
        raise WeightsError(f"{CONFIG} beside the weights is not a {network}'s: {error.message}") from error


def load(path: Path, shapes: Mapping[str, tuple[int, ...]], rename: Callable[[str], str]) -> dict[str, np.ndarray]:
    """The arrays of these names from a file, each of the shape it must have; others, such as a top, are left."""
    found = {rename(name): array for name, array in _read(path).items()}
    for name, shape in shapes.items():
        if name not in found:
            others = ", ".join(sorted(set(found) - set(shapes))[:3]) or "nothing else"
            raise WeightsError(f"{path.name} has no array {name}, of shape {shape}. What it has beside: {others}.")
        if found[name].shape != shape:
            raise WeightsError(f"{path.name}: the array {name} has the shape {found[name].shape}, but needs {shape}.")
    return {name: np.ascontiguousarray(found[name], np.float32) for name in shapes}


def folder() -> Path:
    """Return METALMARK_CACHE/weights, or weights under the user's cache folder."""
    with _known_home(os.environ.get(CACHE_VARIABLE) or "imagenet"):
        return cache_folder("weights")


@contextmanager
def _known_home(word: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise WeightsError(
            f"{word}: this user's home folder is not known. Give --weights a whole path, or name a folder for "
            f"downloads with {CACHE_VARIABLE}."
        ) from error


def _published(name: str) -> Path:
    path = folder() / name
    url = BASE_URL + name
    by_hand = f"Bring {url} from elsewhere to {_shown(path)}, or name a file with --weights PATH."
    if path.exists():
        if mismatch := _mismatch(path, name):
            raise WeightsError(
                f"{_shown(path)} is damaged: {mismatch}. Delete it and run again, or put {url} there whole."
            )
        return path
    try:
        with downloaded(url, path) as part:
            if mismatch := _mismatch(part, name):
                raise WeightsError(f"{url} came, but it is not the published file: {mismatch}. {by_hand}")
    except OSError as error:  # the errors of requests are of this kind too
        raise WeightsError(f"{name} can't be downloaded: {download_error(error)}. {by_hand}") from error
    return path


def _mismatch(path: Path, name: str) -> str:
    """How the file's hash differs from the one in its published name; empty if it does not."""
    wanted = Path(name).stem.rpartition("-")[2]
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if got.startswith(wanted) else f"its SHA-256 begins with {got[: len(wanted)]}, not with {wanted}"


def _shown(path: Path) -> str:
    """As a shell takes it, without the user's name: messages are stored with the records, less their paths."""
    if os.environ.get(CACHE_VARIABLE):
        return f"${CACHE_VARIABLE}/weights/{path.name}"
    try:
        return f"$HOME/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # it is not in the home folder, or no home folder is known
        return str(path)


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pth", ".pt", ".bin"):
        return read_pth(path)
    raise WeightsError(f"{path.name}: weights are read from .safetensors, .pth, .pt or .bin files, not from this kind.")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise NotInstalledError(f"{path.name} needs the package safetensors: pip install safetensors") from error
    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path.name} can't be read as safetensors; it may be cut short: {error}") from error


def read_pth(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a state_dict. Raises WeightsError for whatever is not one."""
    try:
        with path.open("rb") as file:
            found = _read_zip(file) if zipfile.is_zipfile(file) else _read_legacy(file)
        if not isinstance(found, dict) or not any(isinstance(value, _Tensor) for value in found.values()):
            raise WeightsError(f"{path.name} holds no state_dict: a dictionary of names and tensors.")
        return {str(name): value.array() for name, value in found.items() if isinstance(value, _Tensor)}
    except WeightsError:
        raise
    except Exception as error:  # a damaged pickle raises anything at all
        why = repr(error)[:MOST_REASON]
        raise WeightsError(f"{path.name} can't be read as PyTorch weights; it may be cut short: {why}") from error


class _Storage:
    """One stretch of numbers. A file before the zip form has them after the pickle, so they come later."""

    __slots__ = ("count", "data", "dtype")

    def __init__(self, dtype: np.dtype[Any], count: int, data: bytes = b"") -> None:
        self.dtype, self.count, self.data = dtype, count, data

    def __setstate__(self, _: object) -> None:
        raise pickle.UnpicklingError("it changes a storage, which weights do not need")


class _Tensor(NamedTuple):
    """What a pickle says of a tensor. Nothing is read from memory before every number of it is checked.

    A tuple, since a pickle may change whatever else it has made: an array must not be within its reach.
    """

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def array(self) -> np.ndarray:
        storage, offset, size, stride = self
        shaped = isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)
        if not isinstance(storage, _Storage) or not shaped:
            raise ValueError("a tensor is not described as PyTorch does it")
        if not all(type(number) is int for number in (offset, *size, *stride)) or min(size, default=0) < 0:
            raise ValueError("a tensor has a size, stride or offset that is not a whole number")
        if len(storage.data) < storage.count * storage.dtype.itemsize:
            raise ValueError("a storage is shorter than the file says")
        if 0 in size:
            return np.zeros(size, storage.dtype)
        # In Python's integers, which do not overflow: NumPy believes whatever strides it is given.
        reaches = [(length - 1) * step for length, step in zip(size, stride, strict=True)]
        lowest = offset + sum(reach for reach in reaches if reach < 0)
        highest = offset + sum(reach for reach in reaches if reach > 0)
        if not 0 <= lowest <= highest < storage.count:
            raise ValueError("a tensor reaches past its storage")
        if math.prod(size) > max(storage.count, MOST_EXPANDED):
            raise ValueError(f"a tensor has more than {MOST_EXPANDED} elements, but its storage has {storage.count}")
        whole = np.frombuffer(storage.data, storage.dtype, storage.count)
        # A dimension of one element takes no step, whatever the file says of it.
        used = (step if length > 1 else 0 for length, step in zip(size, stride, strict=True))
        steps = tuple(step * whole.itemsize for step in used)
        return np.lib.stride_tricks.as_strided(whole[offset:], size, steps)


class _Bounded:
    """A file from which no more is asked than it has: Python makes room for all that is asked for before it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.length = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.readline, self.tell, self.seek = file.readline, file.tell, file.seek

    def read(self, count: int) -> bytes:
        return self._file.read(min(count, self.length - self._file.tell()))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: _Bounded, storage: Callable[[str, np.dtype[Any], int], _Storage]) -> None:
        super().__init__(file)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.cuda") and name in DTYPES:
            return name
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor"): _tensor,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        try:
            return known[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which weights do not need") from None

    def persistent_load(self, pid: Any) -> _Storage:
        _, dtype, key, _, count, *_ = pid
        if type(key) is not str or type(count) is not int or count < 0:
            raise pickle.UnpicklingError("a storage is not described as PyTorch does it")
        return self._storage(key, DTYPES[dtype], count)


def _unpickled(file: _Bounded, storage: Callable[[str, np.dtype[Any], int], _Storage]) -> Any:
    """Unpickle what comes next in a file, unless it asks for more memory than its own length."""
    start = file.tell()
    for opcode, argument, position in pickletools.genops(file):  # type: ignore[arg-type]
        # The unpickler makes room for as many remembered objects as the largest number says.
        if "PUT" in opcode.name and isinstance(argument, int) and argument > (position or 0):
            raise ValueError("its pickle counts objects that it does not have")
    file.seek(start)
    return _Unpickler(file, storage).load()


def _read_zip(file: IO[bytes]) -> Any:
    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        root = pickled.removesuffix("data.pkl")
        read: dict[str, bytes] = {}

        def content(name: str) -> bytes:
            if name not in read:
                # PyTorch compresses nothing, so the members together can't be larger than the file.
                member = archive.getinfo(name)
                if max(member.file_size, member.compress_size) + sum(map(len, read.values())) > length:
                    raise ValueError(f"{name[:100]} is larger than the file")
                read[name] = archive.read(name)
            return read[name]

        def storage(key: str, dtype: np.dtype[Any], count: int) -> _Storage:
            return _Storage(dtype, count, content(f"{root}data/{key}"))

        return _unpickled(_Bounded(io.BytesIO(content(pickled))), storage)


def _read_legacy(opened: IO[bytes]) -> Any:
    file = _Bounded(opened)
    storages: dict[str, _Storage] = {}

    def storage(key: str, dtype: np.dtype[Any], count: int) -> _Storage:
        return storages.setdefault(key, _Storage(dtype, count))

    if _unpickled(file, storage) != LEGACY_MAGIC:
        raise ValueError("it is neither a zip archive nor of the form before that")
    _version, _system, found = (_unpickled(file, storage) for _ in range(3))
    for key in _unpickled(file, storage):
        count = int(np.frombuffer(file.read(8), "<i8")[0])
        described = storages[key]
        wanted = count * described.dtype.itemsize
        if count != described.count or wanted > file.length - file.tell():
            raise ValueError(f"the storage {key} is not as long as the file says")
        described.data = file.read(wanted)
    return found


def _tensor(storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _Tensor:
    return _Tensor(storage, offset, size, stride)


def _parameter(data: _Tensor, *_: Any) -> _Tensor:
    return data
