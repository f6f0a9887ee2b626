"""Batches of a Split, and what is done to their pixels: NumPy only, so that every framework gets the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metalmark.data.split import Labels, Pixels, Positions, Split

Floats = npt.NDArray[np.float32]

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


def order(count: int, *, seed: int, epoch: int = 0, shuffle: bool = True) -> Positions:
    """Each position once; another order each epoch, the same for the same seed and epoch."""
    if not shuffle:
        return np.arange(count, dtype=np.intp)
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.intp, copy=False)


def batches(
    split: Split, *, batch_size: int, seed: int, epoch: int = 0, shuffle: bool = True, drop_last: bool = False
) -> Iterator[tuple[Pixels, Labels]]:
    """One epoch: every sample once, unless `drop_last` leaves out what does not fill a batch."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be 1 or more")
    positions = order(len(split), seed=seed, epoch=epoch, shuffle=shuffle)
    for start in range(0, len(positions), batch_size):
        chosen = positions[start : start + batch_size]
        if drop_last and len(chosen) < batch_size:
            return
        yield split.images[chosen], split.labels[chosen]


def resize_nearest(images: Pixels, pixels: int) -> Pixels:
    """NHWC to `pixels` x `pixels`; each takes the old pixel that its centre falls in, as TensorFlow and Pillow do."""
    height, width = images.shape[1:3]
    rows, columns = _nearest(height, pixels), _nearest(width, pixels)
    return images[:, rows[:, np.newaxis], columns]


def to_unit(images: Pixels) -> Floats:
    """0 to 255 → 0 to 1."""
    return np.divide(images, np.float32(255), dtype=np.float32)


def to_signed(images: Pixels) -> Floats:
    """0 to 255 → -1 to 1, as MobileNetV2's weights expect."""
    scaled = np.divide(images, np.float32(127.5), dtype=np.float32)
    scaled -= 1
    return scaled


def imagenet_normalise(images: Pixels) -> Floats:
    """RGB to zero mean and unit deviation over ImageNet, as torchvision's weights expect."""
    if images.shape[-1] != 3:
        raise ValueError(f"images of shape {images.shape} have not 3 channels last")
    scaled = to_unit(images)
    scaled -= IMAGENET_MEAN
    scaled /= IMAGENET_STD
    return scaled


def _nearest(old: int, new: int) -> Positions:
    # (2i + 1) * old / (2 * new), in whole numbers: with floats a centre on an edge may fall either way.
    return (2 * np.arange(new, dtype=np.intp) + 1) * old // (2 * new)
