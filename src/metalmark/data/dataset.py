"""Dataset: training and validation apart, each a Split or a Stream, and the order of samples in an epoch.

Everything is NumPy, so that every framework gets the same arrays.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from metalmark.errors import UsageError
from metalmark.model.workload import Batch

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]
Positions = npt.NDArray[np.intp]
HELD_OUT = 5
"""One sample in so many is for validation, where the data does not say which."""


@runtime_checkable
class LazyImages(Protocol):
    """Images that are decoded or made when they are asked for, by an array of positions."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, positions: Positions, /) -> Pixels: ...


Images = Pixels | LazyImages
"""uint8, NHWC: an array, or what makes one when it is indexed with an array of positions."""


class Split(Protocol):
    """Samples that can be asked for by their positions."""

    def __len__(self) -> int: ...

    def take(self, positions: Positions) -> Batch:
        """Return these samples as one batch of NumPy arrays, before a workload's `augment` and `sample`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """Batches that can only be had one after another, in an order of their own: a loader, or any iterable."""

    name: str
    """What it is, as messages call it: "the DataLoader"."""
    open: Callable[[int], Iterable[tuple[int, Any]]]
    """open(epoch) begins a pass, which gives each batch with its number; epoch 0 is for validation."""
    read: Callable[[int, Any], Batch]
    """read(number, what came) makes a batch of NumPy arrays of it, or says what is wrong with it."""
    length: int | None = None
    """Batches of one pass, where they can be counted."""
    samples: int | None = None
    kind: str = "iterable"
    steady: bool = True
    """Whether its order is the same in each epoch, as far as can be told without going through it."""
    endless: bool = False
    note: str = ""
    """What is known to be different in a resumed training."""
    peek: Callable[[], Any] | None = None
    """Makes a first batch at less cost than by beginning a pass."""
    keep: frozenset[int] | None = None
    """The numbers of the batches that belong to this part; None: all of them."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Begin a pass. Its order is the stream's own, which may or may not depend on the epoch."""
        for number, what in self.open(epoch):
            if self.keep is None or number in self.keep:
                yield self.read(number, what)

    def first(self) -> Batch:
        """Return a batch to see what batches are like."""
        if self.peek is not None:
            return self.read(0, self.peek())
        for batch in self.batches(1):
            return batch
        raise UsageError(f"{self.name} gave no batches.", hint="Give data with at least one batch.")


Part = Split | Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSplit:
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

    def take(self, positions: Positions) -> Batch:
        return Batch(inputs=self.images[positions], targets=self.labels[positions])


@dataclass(frozen=True, kw_only=True, eq=False)
class Subset:
    """Some samples of another split, by their positions in it."""

    whole: Split
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, positions: Positions) -> Batch:
        return self.whole.take(self.positions[positions])

    @property
    def classes(self) -> tuple[str, ...]:
        return classes_of(self.whole)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a workload trains and validates on. `source` is shown and stored, so it contains no path."""

    name: str
    source: str
    train: Part
    validation: Part | None
    """None only of a user's own data, where nothing is validated."""
    digest: str
    """SHA-256 of the samples (of names, sizes and first bytes where images stay in their files, of a few samples where
    only asking for them all would tell)."""
    test: Part | None = None
    """Samples that neither training nor validation sees, where the data came in three parts."""
    notes: tuple[str, ...] = ()
    """What a reader of a run must know of this data: an order that can't be had twice."""


def classes_of(part: Part) -> tuple[str, ...]:
    """Return the names of the classes, where the data says them."""
    return tuple(getattr(part, "classes", ()))


def held_out(count: int) -> tuple[Positions, Positions]:
    """Return the positions to train on and about a fifth to validate on, told by a hash of each position: always the
    same ones, and a sample keeps its side when more are added behind it."""
    # SplitMix64's mixing, whose lowest fifth is as good as any.
    state = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    chosen = state < np.uint64(2**64 // HELD_OUT)
    if count > 1 and not 0 < chosen.sum() < count:
        chosen = state == state.min()
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def array_digest(*splits: ImageSplit) -> str:
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
