"""Small data that can be learnt, as IDX files and as a Dataset of CIFAR's shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metalmark.data.dataset import Dataset, ImageSplit, array_digest
from metalmark.data.mnist import FILES, idx_bytes

CLASSES = tuple("0123456789")


def learnable(count: int, shape: tuple[int, ...], *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Each class has a picture of its own, under noise; the pictures are the same for every seed."""
    pictures = np.random.default_rng(99).integers(0, 2, (10, *shape)) * 120
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
    return (pictures[labels] + rng.integers(0, 130, (count, *shape))).astype(np.uint8), labels


def write_learnable_idx(folder: Path, *, train: int = 200, validation: int = 70) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = [*learnable(train, (28, 28), seed=1), *learnable(validation, (28, 28), seed=2)]
    for name, array in zip(FILES, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return folder


def split(count: int, shape: tuple[int, ...], *, seed: int) -> ImageSplit:
    images, labels = learnable(count, shape, seed=seed)
    return ImageSplit(images=images, labels=labels.astype(np.int32), classes=CLASSES)


def dataset(shape: tuple[int, ...], *, train: int = 22, validation: int = 13) -> Dataset:
    first, second = split(train, shape, seed=1), split(validation, shape, seed=2)
    return Dataset(
        name="small", source="made for a test", train=first, validation=second, digest=array_digest(first, second)
    )
