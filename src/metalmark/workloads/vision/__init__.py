"""What the image workloads share: their parameters, their batches, and how much of the network is trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metalmark.data.dataset import resize_nearest
from metalmark.errors import FormatError
from metalmark.model.workload import Batch, Param, Params
from metalmark.workloads.vision.backbone import Backbone

CHANNELS = 3
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the images torchvision's weights were trained on."""
CENTRED = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""[0, 1] as [-1, 1]."""

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


def parameters(*, batch_size: int, pixels: int) -> tuple[Param, ...]:
    return (
        Param("batch_size", batch_size, "samples in a step", minimum=1),
        # Five halvings: below 32 nothing would be left of the image.
        Param("pixels", pixels, "side of the square image", minimum=32),
        Param("train", "head", "head: the backbone is frozen; all: every weight is trained", choices=("head", "all")),
        Param(
            "weights",
            "none",
            "of the backbone: none (random), imagenet (downloaded), or a .safetensors or .pth file",
            choices=("none", "imagenet"),
            path=True,
        ),
    )


def is_frozen(params: Params) -> bool:
    return bool(params["train"] == "head")


def image_batch(params: Params, rng: np.random.Generator, *, classes: int, normalisation: Normalisation) -> Batch:
    """Random 8-bit images, scaled to [0, 1] and normalised as for the real ones, with random labels."""
    size, side = params["batch_size"], params["pixels"]
    images = rng.integers(0, 256, (size, side, side, CHANNELS), np.uint8)
    return Batch(inputs=(_normalised(images, normalisation),), targets=rng.integers(0, classes, size, np.int32))


def real_batch(
    params: Params, images: np.ndarray, labels: np.ndarray, *, classes: int, normalisation: Normalisation
) -> Batch:
    """A data set's 8-bit images, brought to the side by the nearest pixel as published, and normalised."""
    if labels.max() >= classes:
        raise FormatError(
            f"The data has {labels.max() + 1} classes or more, and the head has {classes} outputs.",
            hint="Set --classes where the workload has it, or use its own data set.",
        )
    return Batch(inputs=(_normalised(resize_nearest(images, params["pixels"]), normalisation),), targets=labels)


def _normalised(images: np.ndarray, normalisation: Normalisation) -> np.ndarray:
    mean, deviation = (np.asarray(each, np.float32) for each in normalisation)
    return (images.astype(np.float32) / np.float32(255) - mean) / deviation


def training_factor(params: Params, backbone: Backbone, head_flops: Sequence[float]) -> float:
    """A training step's work over the forward pass's; `head_flops` are the head's dense layers in their order."""
    pixels, head = int(params["pixels"]), sum(head_flops)
    total = backbone.flops(pixels) + head
    if is_frozen(params):
        # No gradient goes below the head's first layer, which has that of its weights only.
        return (total + 2 * head - head_flops[0]) / total
    return (3 * total - backbone.first_flops(pixels)) / total
