"""Random views of an image: rotated, cropped, stretched and flipped in one pass, so that it is sampled once only."""

from __future__ import annotations

import math

import numpy as np

ROTATION_DEGREES = 30.0
AREA = (0.08, 1.0)
"""The crop's share of the image, as torchvision's RandomResizedCrop has it."""
RATIO = (3 / 4, 4 / 3)


def augmented(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each 8-bit image (NHWC) seen through a random affine map, bilinear, black beyond its edge."""
    # Pillow is an extra: only real images need it, and those were decoded by it.
    from PIL import Image

    _, height, width, _ = images.shape
    seen = np.empty_like(images)
    for number, image in enumerate(images):
        coefficients = _map(rng, height, width)
        view = Image.fromarray(image).transform(
            (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
        )
        seen[number] = np.asarray(view)
    return seen


def _map(rng: np.random.Generator, height: int, width: int) -> tuple[float, ...]:
    """From a pixel of the view to one of the image: a box of the image, turned about the image's middle."""
    area = height * width * rng.uniform(*AREA)
    ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
    box_width, box_height = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, top = rng.uniform(0, width - box_width), rng.uniform(0, height - box_height)
    angle = math.radians(rng.uniform(-ROTATION_DEGREES, ROTATION_DEGREES))
    cosine, sine = math.cos(angle), math.sin(angle)
    across, down = box_width / width, box_height / height
    if rng.random() < 0.5:
        left, across = left + box_width, -across
    # Measured from the middle, so that turning leaves it where it is.
    x0, y0 = left - width / 2, top - height / 2
    return (
        cosine * across, -sine * down, cosine * x0 - sine * y0 + width / 2,
        sine * across, cosine * down, sine * x0 + cosine * y0 + height / 2,
    )  # fmt: skip
