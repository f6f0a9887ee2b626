from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.data.dataset import (
    Split,
    array_digest,
    batches,
    order,
    resize_nearest,
    to_unit,
)
from tests.data.files import numbers


def split(count: int) -> Split:
    """Image i is all i, and so is its label: who goes where can be followed."""
    labels = np.arange(count, dtype=np.int32)
    images = np.broadcast_to(labels[:, None, None, None], (count, 2, 2, 1)).astype(np.uint8)
    return Split(images=images, labels=labels, classes=tuple(map(str, range(max(1, count)))))


@given(
    count=st.integers(0, 60),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 2**63),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_every_sample_once(count: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool) -> None:
    options = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "drop_last": drop_last}
    made = list(batches(split(count), **options))
    seen = [int(label) for _, labels in made for label in labels]
    assert len(seen) == len(set(seen)) == (count // batch_size * batch_size if drop_last else count)
    assert all(len(labels) == batch_size for _, labels in made[: None if drop_last else -1])
    for images, labels in made:
        assert (images[:, 0, 0, 0] == labels).all(), "an image lost its label"
    again = list(batches(split(count), **options))
    assert all(
        np.array_equal(one, two) for a, b in zip(made, again, strict=True) for one, two in zip(a, b, strict=True)
    )


def test_epochs_and_seeds_have_their_own_orders() -> None:
    base = order(100, seed=1, epoch=0)
    assert not np.array_equal(base, order(100, seed=1, epoch=1))
    assert not np.array_equal(base, order(100, seed=2, epoch=0))
    assert np.array_equal(base, order(100, seed=1, epoch=0))
    assert np.array_equal(order(5, seed=1, shuffle=False), [0, 1, 2, 3, 4])


def test_a_batch_of_nothing() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        next(batches(split(3), batch_size=0, seed=0))


def test_batches_are_the_callers_to_change() -> None:
    whole = split(4)
    for images, _ in batches(whole, batch_size=4, seed=0, shuffle=False):
        images[:] = 99
    assert whole.images[3, 0, 0, 0] == 3


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


def test_scales() -> None:
    images = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    scaled = to_unit(images)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.ravel(), [0, 0.2, 1], atol=1e-7)
    assert to_unit(np.arange(256, dtype=np.uint8)).max() == 1.0


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
            Split(**{"images": good.images, "labels": good.labels, "classes": good.classes, **change})


def test_the_digest_sees_every_change() -> None:
    one, two = split(3), split(3)
    assert array_digest(one) == array_digest(two)
    two.images[2, 1, 1, 0] ^= 1
    assert array_digest(one) != array_digest(two)
    assert array_digest(split(3), split(4)) != array_digest(split(4), split(3))
