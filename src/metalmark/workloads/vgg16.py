"""vgg16-flowers: VGG16's features, frozen, and a head of 25088-512-102; Adam.

The features, and the pooling to 7x7 that keeps the head's shape at any image size, are torchvision's.
"""

import math
from collections.abc import Iterator

import numpy as np

from metalmark.model.workload import Param
from metalmark.workloads.vision import Backbone, Block, Conv, Transfer, transfer_workload

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Outputs of the convolutions between two pools, which halve the image."""
ROTATION_DEGREES = 30.0
AREA = (0.08, 1.0)
"""The crop's share of the image, as torchvision's RandomResizedCrop has it."""
RATIO = (3 / 4, 4 / 3)


def blocks() -> Iterator[Block]:
    inputs, place = 3, 0
    for widths in STAGES:
        convs = []
        for outputs in widths:
            convs.append(Conv(name=f"features.{place}", inputs=inputs, outputs=outputs, kernel=3))
            inputs, place = outputs, place + 2  # its ReLU has a place of its own
        yield Block(convs=tuple(convs), pool=(2, 2))
        place += 1  # and so has the pool


def augmented(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return random views of 8-bit images (NHWC), black beyond their edges.

    Each is rotated, cropped, stretched and flipped by one bilinear map, so that it is sampled only once.
    """
    # Pillow is an extra: only real images need it, and those were decoded by it.
    from PIL import Image

    _, height, width, _ = images.shape
    seen = np.empty_like(images)
    for number, image in enumerate(images):
        coefficients = _random_map(rng, height, width)
        view = Image.fromarray(image).transform(
            (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
        )
        seen[number] = np.asarray(view)
    return seen


def _random_map(rng: np.random.Generator, height: int, width: int) -> tuple[float, ...]:
    """Draw the map from a pixel of the view to one of the image: a box of the image, turned about its middle."""
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


BACKBONE = Backbone(name="vgg16", blocks=tuple(blocks()), grid=7)
NETWORK = Transfer(
    backbone=BACKBONE,
    hidden=(512,),
    classes=lambda params: int(params["classes"]),
    # Adam's usual 1e-3 throws the loss up tenfold before it falls: the head has 25,088 inputs.
    learning_rate=lambda _: 3e-5,
)
WORKLOAD = transfer_workload(
    NETWORK,
    name="vgg16-flowers",
    title="VGG16, frozen, + Dense 512, Dense 102 on 224x224x3 images",
    batch_size=64,
    pixels=224,
    params=(
        Param("classes", 102, "kinds of flower", minimum=2),
        Param("augment", True, "real training images: random rotations, crops and flips"),
    ),
    datasets=("flowers-102", "folder"),
    augment=lambda params, images, rng: augmented(images, rng) if params["augment"] else images,
    families=("torch", "keras"),
)
