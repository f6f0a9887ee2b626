from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.data.dataset import ImageSplit, array_digest, order, resize_nearest
from tests.data.files import numbers


def split(count: int) -> ImageSplit:
    """Image i is all i, and so is its label: who goes where can be followed."""
    labels = np.arange(count, dtype=np.int32)
    images = np.broadcast_to(labels[:, None, None, None], (count, 2, 2, 1)).astype(np.uint8)
    return ImageSplit(images=images, labels=labels, classes=tuple(map(str, range(max(1, count)))))


@given(count=st.integers(0, 60), seed=st.integers(0, 2**63), shuffle=st.booleans())
def test_every_sample_once(count: int, seed: int, shuffle: bool) -> None:
    assert sorted(order(count, seed=seed, shuffle=shuffle).tolist()) == list(range(count))


def test_epochs_and_seeds_have_their_own_orders() -> None:
    base = order(100, seed=1, epoch=0)
    assert not np.array_equal(base, order(100, seed=1, epoch=1))
    assert not np.array_equal(base, order(100, seed=2, epoch=0))
    assert np.array_equal(base, order(100, seed=1, epoch=0))
    assert np.array_equal(order(5, seed=1, shuffle=False), [0, 1, 2, 3, 4])


def test_nearest_is_exact_for_whole_factors() -> None:
    images = numbers(2, 32, 32, 3)
    np.testing.assert_array_equal(resize_nearest(images, 128), images.repeat(4, 1).repeat(4, 2))
    np.testing.assert_array_equal(resize_nearest(images, 32), images)


@pytest.mark.parametrize(("old", "new"), [((28, 28), 32), ((32, 32), 224), ((30, 40), 17), ((7, 5), 1), ((1, 1), 9)])
def test_nearest_is_pillows(old: tuple[int, int], new: int) -> None:
    from PIL import Image

    image = numbers(*old, 3)
    wanted = Image.fromarray(image).resize((new, new), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resize_nearest(image[np.newaxis], new)[0], np.asarray(wanted))


def test_a_split_that_does_not_fit_itself() -> None:
    good = split(3)
    for change in (
        {"images": good.images[:2]},
        {"images": good.images[..., 0]},
        {"images": good.images.astype(np.float32)},
        {"labels": good.labels.astype(np.int64)},
        {"labels": good.labels + 1},
        {"labels": good.labels - 1},
    ):
        with pytest.raises(ValueError, match=r"images|labels"):
            ImageSplit(**{"images": good.images, "labels": good.labels, "classes": good.classes, **change})


def test_the_digest_sees_every_change() -> None:
    one, two = split(3), split(3)
    assert array_digest(one) == array_digest(two)
    two.images[2, 1, 1, 0] ^= 1
    assert array_digest(one) != array_digest(two)
    assert array_digest(split(3), split(4)) != array_digest(split(4), split(3))
