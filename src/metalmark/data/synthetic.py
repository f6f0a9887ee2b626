"""Images made from a seed, in a data set's shapes, with a weak sign of their class: enough to learn from."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metalmark.data import cifar, flowers, mnist
from metalmark.data.dataset import Dataset, Images, ImageSplit, Pixels, Positions
from metalmark.errors import UsageError

SOURCE = "synthetic"
VERSION = 1
"""Of the recipe below: another recipe is other data, so the digest must change with it."""
SIGNAL = 3
"""Steps of brightness, up or down, by which a class differs, under noise of 37."""
PATTERN_CELLS = 4
RESIDENT_BYTES = 2**13
"""An image of at most so many is made beforehand with all others; photographs would fill the memory."""
CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Shape:
    train: int
    validation: int
    image: tuple[int, int, int]
    classes: tuple[str, ...]


def shape_of(name: str, pixels: int) -> Shape:
    """Sizes of the real thing; `pixels` is the side of images that come in all sizes."""
    if name in mnist.CLASSES:
        return Shape(train=60_000, validation=10_000, image=(28, 28, 1), classes=mnist.CLASSES[name])
    if name == "cifar-10":
        return Shape(train=50_000, validation=10_000, image=(32, 32, 3), classes=cifar.CLASSES)
    if name == "flowers-102":
        return Shape(train=6552, validation=818, image=(pixels, pixels, 3), classes=flowers.CLASSES)
    raise UsageError(
        f"There is no synthetic {name}: a folder's images and classes are its own.",
        hint="Give the folder: --data PATH, or take a named data set.",
    )


@dataclass(frozen=True, eq=False)
class SyntheticImages:
    """Image i is noise that only the seed and i decide, plus its class's pattern; made when asked for."""

    seed: int
    labels: npt.NDArray[np.int32]
    patterns: npt.NDArray[np.uint8]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.labels), *self.patterns.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, positions: Positions, /) -> Pixels:
        image = self.patterns.shape[1:]
        noise = _noise(self.seed, positions, int(np.prod(image))).reshape(-1, *image)
        noise >>= 1
        noise += self.patterns[self.labels[positions]]
        return noise


def load_synthetic(name: str, *, seed: int, pixels: int) -> Dataset:
    shape = shape_of(name, pixels)
    # The same patterns for both splits, or what is learnt on one would say nothing of the other.
    patterns = _patterns(seed, shape)
    train = _split(shape, shape.train, patterns, seed=seed, part=0)
    validation = _split(shape, shape.validation, patterns, seed=seed, part=1)
    words = f"{SOURCE} {VERSION} {name} {seed} {shape}"
    digest = hashlib.sha256(words.encode()).hexdigest()
    return Dataset(name=name, source=SOURCE, train=train, validation=validation, digest=digest)


def _split(shape: Shape, count: int, patterns: Pixels, *, seed: int, part: int) -> ImageSplit:
    rng = np.random.default_rng([seed, part])
    labels = rng.permutation(np.arange(count, dtype=np.int32) % len(shape.classes))
    lazy = SyntheticImages(int(rng.integers(2**63)), labels, patterns)
    images: Images = lazy
    if patterns[0].size <= RESIDENT_BYTES:
        images = np.concatenate([lazy[np.arange(at, min(at + CHUNK, count))] for at in range(0, count, CHUNK)])
    return ImageSplit(images=images, labels=labels, classes=shape.classes)


def _patterns(seed: int, shape: Shape) -> Pixels:
    """A coarse chequer of brighter and darker fields a class, around 64: with noise below 128, no sum leaves a byte."""
    height, width, channels = shape.image
    rng = np.random.default_rng([seed, 2])
    cells = rng.choice([-SIGNAL, SIGNAL], (len(shape.classes), PATTERN_CELLS, PATTERN_CELLS, 1))
    rows = np.arange(height) * PATTERN_CELLS // height
    columns = np.arange(width) * PATTERN_CELLS // width
    fields = cells[:, rows[:, np.newaxis], columns]
    return np.broadcast_to(64 + fields, (len(shape.classes), height, width, channels)).astype(np.uint8)


def _noise(seed: int, positions: Positions, size: int) -> Pixels:
    """SplitMix64 of the byte's place in an endless stream: any image without those before it."""
    words = -(-size // 8)
    state = np.add.outer(positions * words, np.arange(1, words + 1)).astype(np.uint64)
    state *= np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(seed)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return np.ascontiguousarray(state.astype("<u8").view(np.uint8)[:, :size])
