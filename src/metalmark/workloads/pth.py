"""PyTorch's .pth files as NumPy arrays, without PyTorch: the published weights serve every framework.

The file is a pickle, and a pickle may run any code. This one may build dictionaries and tensors, and nothing else.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from metalmark.errors import WeightsError

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle of a file from before PyTorch 1.6, which is no zip archive."""
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


def read(path: Path) -> dict[str, np.ndarray]:
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
