from __future__ import annotations

import numpy as np
import pytest

from metalmark.data.catalog import FileReading, load
from metalmark.data.dataset import ImageSplit, LazyImages
from metalmark.data.synthetic import SyntheticImages, shape_of

SHAPES = {
    "mnist": ((60_000, 28, 28, 1), (10_000, 28, 28, 1), 10),
    "fashion-mnist": ((60_000, 28, 28, 1), (10_000, 28, 28, 1), 10),
    "cifar-10": ((50_000, 32, 32, 3), (10_000, 32, 32, 3), 10),
    "flowers-102": ((6552, 256, 256, 3), (818, 256, 256, 3), 102),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_of_the_real_thing(name: str) -> None:
    dataset = load(name, "synthetic", 3)
    train, validation, classes = SHAPES[name]
    assert dataset.source == "synthetic"
    assert dataset.train.images.shape == train
    assert dataset.validation.images.shape == validation
    assert len(dataset.train.classes) == classes
    counts = np.bincount(dataset.train.labels)
    assert len(counts) == classes
    assert counts.max() - counts.min() <= 1


def test_photographs_are_made_when_asked_for() -> None:
    images = load("flowers-102", "synthetic", 3, reading=FileReading(pixels=64)).train.images
    assert isinstance(images, SyntheticImages)
    assert isinstance(images, LazyImages)
    batch = images[np.array([5, 6551, 5])]
    assert batch.dtype == np.uint8
    np.testing.assert_array_equal(batch[0], batch[2])
    assert not np.array_equal(batch[0], batch[1])
    assert 0 < batch.min() < batch.max() < 255


def test_an_image_depends_on_nothing_but_the_seed_and_its_place() -> None:
    whole = load("mnist", "synthetic", 3)
    again = load("mnist", "synthetic", 3)
    np.testing.assert_array_equal(whole.train.images, again.train.images)
    assert whole.digest == again.digest
    other = load("mnist", "synthetic", 4)
    assert whole.digest != other.digest
    assert not np.array_equal(whole.train.images[:10], other.train.images[:10])


def test_the_same_on_every_machine() -> None:
    """Fixed by hand: whoever changes the recipe changes its VERSION."""
    dataset = load("mnist", "synthetic", 0)
    assert dataset.train.images[7, 3, :6, 0].tolist() == PIXELS
    assert dataset.train.labels[:6].tolist() == FIRST


def test_no_image_is_in_both_splits_or_twice() -> None:
    dataset = load("cifar-10", "synthetic", 0)
    train = {image.tobytes() for image in dataset.train.images}
    validation = {image.tobytes() for image in dataset.validation.images}
    assert len(train) == 50_000
    assert len(validation) == 10_000
    assert not train & validation


def nearest_mean(train: ImageSplit, validation: ImageSplit) -> float:
    """Share of validation images nearest to the mean of their class in training: learning at its simplest."""
    images = np.asarray(train.images[np.arange(5000)], np.float32).reshape(5000, -1)
    labels = train.labels[:5000]
    means = np.stack([images[labels == label].mean(0) for label in range(len(train.classes))])
    unseen = np.asarray(validation.images[np.arange(1000)], np.float32).reshape(1000, -1)
    distances = (means**2).sum(1) - 2 * unseen @ means.T
    return float((distances.argmin(1) == validation.labels[:1000]).mean())


@pytest.mark.parametrize("name", ["mnist", "cifar-10"])
def test_there_is_something_to_learn(name: str) -> None:
    dataset = load(name, "synthetic", 0)
    assert nearest_mean(dataset.train, dataset.validation) > 0.5


def test_sizes_come_from_the_parsers() -> None:
    assert shape_of("cifar-10", 99).image == (32, 32, 3)
    assert shape_of("flowers-102", 99).image == (99, 99, 3)


PIXELS = [155, 149, 158, 157, 194, 109]
FIRST = [3, 0, 3, 1, 3, 0]
