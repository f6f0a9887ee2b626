"""Small files in the real formats, made here: IDX, CIFAR-10 batches as Python 2 pickled them, archives, photographs."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from metalmark.data.cifar import PICKLES, PIXELS
from metalmark.data.mnist import FILES, idx_bytes


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx_arrays(train: int = 20, validation: int = 10) -> list[np.ndarray]:
    return [
        numbers(train, 28, 28, seed=1),
        np.arange(train, dtype=np.uint8) % 10,
        numbers(validation, 28, 28, seed=2),
        np.arange(validation, dtype=np.uint8) % 10,
    ]


def write_idx(folder: Path, *, packed: bool = False, dotted: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(FILES, idx_arrays(), strict=True):
        data = idx_bytes(array)
        spelled = name.replace("-idx", ".idx") if dotted else name
        (folder / (spelled + ".gz" if packed else spelled)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def text(word: bytes) -> bytes:
    return b"U" + bytes([len(word)]) + word


def pickled(rows: np.ndarray, labels: list[int], *, order: bytes = b"\x89") -> bytes:
    """Byte for byte what Python 2 and NumPy 1 wrote: protocol 2, all text as `str`, numpy.core.multiarray."""
    count, width = rows.shape
    raw = rows.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01"
        + b"J" + struct.pack("<i", count) + b"J" + struct.pack("<i", width) + b"\x86"
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + order
        + b"T" + struct.pack("<i", len(raw)) + raw
        + b"tb"
    )  # fmt: skip
    whole = b"".join(b"J" + struct.pack("<i", label) for label in labels)
    return (
        b"\x80\x02}q\x01("
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + b"]q\x02(" + whole + b"e"
        + text(b"data") + array
        + text(b"filenames") + b"](" + b"".join(text(b"x_s_000%d.png" % (i % 10)) for i in range(count)) + b"e"
        + b"u."
    )  # fmt: skip


def cifar_rows(batch: int, count: int = 4) -> tuple[np.ndarray, list[int]]:
    return numbers(count, PIXELS, seed=10 + batch), [(batch + i) % 10 for i in range(count)]


def cifar_files(*, binary: bool) -> dict[str, bytes]:
    files = {}
    for batch, name in enumerate(PICKLES):
        rows, labels = cifar_rows(batch)
        if binary:
            files[f"{name}.bin"] = np.column_stack([np.array(labels, np.uint8), rows]).tobytes()
        else:
            files[name] = pickled(rows, labels)
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]], *, packed: bool = True) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), 1) if packed else stream.getvalue()


def member(name: str, data: bytes = b"", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in changes.items():
        setattr(info, field, value)
    return info, data


def picture(seed: int, *, size: tuple[int, int] = (40, 30), form: str = "JPEG", mode: str = "RGB") -> bytes:
    from PIL import Image

    image = Image.fromarray(numbers(size[1], size[0], 3, seed=seed)).convert(mode)
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def write_tree(folder: Path, counts: dict[str, int], *, first: int = 0) -> Path:
    """class/imageN.jpg, every image another."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            first += 1
            (folder / name / f"image{number}.jpg").write_bytes(picture(first))
    return folder
