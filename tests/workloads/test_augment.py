"""Random views: of the same image, decided by the generator alone, and off when asked."""

from __future__ import annotations

import numpy as np
import pytest

from metalmark.workloads import vgg16
from metalmark.workloads.catalog import load

pytest.importorskip("PIL")


def pictures(count: int = 4, side: int = 32) -> np.ndarray:
    """Brighter to the right, so that a flip can be told."""
    ramp = np.linspace(50, 250, side).astype(np.uint8)
    return np.broadcast_to(ramp[None, None, :, None], (count, side, side, 3)).copy()


def test_views_differ_and_repeat_with_the_seed() -> None:
    images = pictures()
    first = vgg16.augmented(images, np.random.default_rng(1))
    assert first.shape == images.shape
    assert first.dtype == np.uint8
    assert len({view.tobytes() for view in first}) == len(images)
    assert np.array_equal(first, vgg16.augmented(images, np.random.default_rng(1)))
    assert not np.array_equal(first, vgg16.augmented(images, np.random.default_rng(2)))
    assert np.array_equal(images, pictures()), "the data set's own images stay as they are"


def test_about_half_are_flipped_and_all_show_the_image() -> None:
    views = vgg16.augmented(pictures(200), np.random.default_rng(0)).astype(float)[:, 12:20, 8:24, 0]
    rises = (views[:, :, -1] - views[:, :, 0]).mean(axis=1)
    assert 60 < (rises > 0).sum() < 140
    assert views.mean() > 100


@pytest.mark.parametrize("seed", range(20))
def test_the_map_stays_near_the_image(seed: int) -> None:
    """A view's middle is a point of the image: turned by 30 degrees about its middle, a box in it strays little."""
    a, b, c, d, e, f = vgg16._random_map(np.random.default_rng(seed), 100, 100)
    x, y = a * 50 + b * 50 + c, d * 50 + e * 50 + f
    assert -25 < x < 125
    assert -25 < y < 125
    area = abs(a * e - b * d)
    assert vgg16.AREA[0] * 0.9 < area <= 1.0001


def test_the_workload_augments_unless_told_not_to() -> None:
    workload = load("vgg16-flowers")
    assert workload.augment is not None
    images, rng = pictures(), np.random.default_rng(0)
    assert workload.augment({"augment": False}, images, rng) is images
    assert not np.array_equal(workload.augment({"augment": True}, images, rng), images)
