"""Files as `torch.save` writes them, with whatever numbers are asked for: PyTorch itself would refuse most of them."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import NamedTuple

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


class SavedTensor(NamedTuple):
    """What a file says of a tensor, true or not."""

    size: object = (2, 3)
    stride: object = (3, 1)
    offset: object = 0
    elements: object = 6
    key: str = "0"
    storage: str = "FloatStorage"


def write_zip(path: Path, tensors: dict[str, SavedTensor], storages: dict[str, bytes]) -> Path:
    """Write the form since PyTorch 1.6."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", state_pickle(tensors))
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def write_legacy(path: Path, tensors: dict[str, SavedTensor], storages: dict[str, tuple[int, bytes]]) -> Path:
    """Write the form before PyTorch 1.6; each storage with the number of elements that is written before it."""
    file = io.BytesIO()
    for head in (LEGACY_MAGIC, 1001, {"little_endian": True}):
        file.write(pickle.dumps(head, 2))
    file.write(state_pickle(tensors))
    file.write(pickle.dumps(list(storages), 2))
    for count, data in storages.values():
        file.write(count.to_bytes(8, "little", signed=True) + data)
    path.write_bytes(file.getvalue())
    return path


def state_pickle(tensors: dict[str, SavedTensor]) -> bytes:
    body = b"".join(_piece(name) + _tensor(tensor) + b"s" for name, tensor in tensors.items())
    return b"\x80\x02}" + body + b"."


def _tensor(tensor: SavedTensor) -> bytes:
    storage = b"(" + _piece("storage") + b"ctorch\n" + tensor.storage.encode() + b"\n"
    storage += _piece(tensor.key) + _piece("cpu") + _piece(tensor.elements) + b"tQ"
    rest = _piece(tensor.offset) + _piece(tensor.size) + _piece(tensor.stride) + _piece(False)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"ccollections\nOrderedDict\n)RtR"


def _piece(value: object) -> bytes:
    """Return what a pickle says to make the value, without its beginning and its end."""
    return pickle.dumps(value, 2)[2:-1]
