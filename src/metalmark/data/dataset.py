"""Dataset and Split: images with their classes, training and validation apart, and their order in an epoch.

Everything is NumPy, so that every framework gets the same arrays.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]
Positions = npt.NDArray[np.intp]


@runtime_checkable
class LazyImages(Protocol):
    """Images that are decoded or made when they are asked for, by an array of positions."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, positions: Positions, /) -> Pixels: ...


Images = Pixels | LazyImages
"""uint8, NHWC: an array, or what makes one when it is indexed with an array of positions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Images and the class of each; `classes[labels[i]]` is the name of image i's class."""

    images: Images
    labels: Labels
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.images.shape) != 4 or len(self.images) != len(self.labels):
            raise ValueError(f"images {self.images.shape} and labels {self.labels.shape} do not belong together")
        if isinstance(self.images, np.ndarray) and self.images.dtype != np.uint8:
            raise ValueError(f"images are {self.images.dtype}, not uint8")
        if self.labels.dtype != np.int32 or self.labels.ndim != 1:
            raise ValueError(f"labels are {self.labels.dtype} of {self.labels.ndim} dimensions, not int32 of one")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError(f"labels {self.labels.min()} to {self.labels.max()} for {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a workload trains and validates on. `source` is shown and stored, so it contains no path."""

    name: str
    source: str
    train: Split
    validation: Split
    digest: str
    """SHA-256 of the images and labels (of names, sizes and first bytes where images stay in their files)."""
    test: Split | None = None
    """Images that neither training nor validation sees, where the data came in three parts."""


def array_digest(*splits: Split) -> str:
    """Return the same digest for the same images and labels, whatever kind of file they came in."""
    digest = hashlib.sha256()
    for split in splits:
        if not isinstance(split.images, np.ndarray):
            raise TypeError("only arrays have a digest of their contents")
        digest.update(repr((split.images.shape, split.classes)).encode())
        digest.update(np.ascontiguousarray(split.images).data)
        digest.update(np.ascontiguousarray(split.labels.astype("<i4")).data)
    return digest.hexdigest()


def order(count: int, *, seed: int, epoch: int = 0, shuffle: bool = True) -> Positions:
    """Return each position once; another order in each epoch, the same for the same seed and epoch."""
    if not shuffle:
        return np.arange(count, dtype=np.intp)
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.intp, copy=False)


def resize_nearest(images: Pixels, pixels: int) -> Pixels:
    """Resize NHWC images to `pixels` x `pixels`; each new pixel takes the old one that its centre falls in, as in
    TensorFlow and Pillow."""
    # (2i + 1) * old / (2 * new), in whole numbers: with floats a centre on an edge may fall either way.
    centres = 2 * np.arange(pixels, dtype=np.intp) + 1
    rows, columns = (centres * old // (2 * pixels) for old in images.shape[1:3])
    return images[:, rows[:, np.newaxis], columns]
