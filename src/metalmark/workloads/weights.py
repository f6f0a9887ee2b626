"""Where a network's weights come from: nowhere, the published file in the user's cache, or a file of the user's own.

Every message says all there is to say in one line: it crosses to the command's process as a failed cell.
"""

import hashlib
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from metalmark.downloads import CACHE_VARIABLE, cache_folder, download_error, downloaded
from metalmark.errors import NotInstalledError, WeightsError

NONE, IMAGENET = "none", "imagenet"
BASE_URL = "https://download.pytorch.org/models/"
PUBLISHED = {
    "resnet50": "resnet50-0676ba61.pth",
    "mobilenet_v2": "mobilenet_v2-b0353104.pth",
    "vgg16": "vgg16-397923af.pth",
}
"""torchvision's files; the name of each ends in the beginning of its SHA-256."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file from before PyTorch 1.6, which is not a zip archive."""
DTYPES = {
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
    except WeightsError:
        raise
    except Exception as error:  # a damaged pickle raises anything at all
        raise WeightsError(f"{path.name} can't be read as PyTorch weights; it may be cut short: {error!r}") from error
    if not isinstance(found, dict) or not any(isinstance(value, np.ndarray) for value in found.values()):
        raise WeightsError(f"{path.name} holds no state_dict: a dictionary of names and tensors.")
    return {str(name): value for name, value in found.items() if isinstance(value, np.ndarray)}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], storage: Callable[[str, np.dtype[Any], int], np.ndarray]) -> None:
        super().__init__(file)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.cuda") and name in DTYPES:
            return DTYPES[name]
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

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, dtype, key, _, count, *_ = pid
        return self._storage(key, dtype, count)


def _read_zip(file: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        root = pickled.removesuffix("data.pkl")

        def storage(key: str, dtype: np.dtype[Any], count: int) -> np.ndarray:
            return np.frombuffer(archive.read(f"{root}data/{key}"), dtype, count)

        with archive.open(pickled) as data:
            return _Unpickler(data, storage).load()


def _read_legacy(file: IO[bytes]) -> Any:
    storages: dict[str, np.ndarray] = {}

    def storage(key: str, dtype: np.dtype[Any], count: int) -> np.ndarray:
        # What is in it comes after the pickle; tensors are views, so they see it then.
        return storages.setdefault(key, np.zeros(count, dtype))

    file.seek(0)
    if _Unpickler(file, storage).load() != LEGACY_MAGIC:
        raise ValueError("it is neither a zip archive nor of the form before that")
    _version, _system, found = (_Unpickler(file, storage).load() for _ in range(3))
    for key in _Unpickler(file, storage).load():
        count = int(np.frombuffer(file.read(8), "<i8")[0])
        array = storages[key]
        data = file.read(count * array.itemsize)
        array[:] = np.frombuffer(data, array.dtype, count)
    return found


def _tensor(storage: np.ndarray, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> np.ndarray:
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= offset <= last < storage.size:
        raise ValueError("a tensor reaches past its storage")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps)


def _parameter(data: np.ndarray, *_: Any) -> np.ndarray:
    return data
