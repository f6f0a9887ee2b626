"""vgg16-flowers: VGG16's features, frozen, and a head of 25088-512-102; Adam."""

from __future__ import annotations

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import vision
from metalmark.workloads.vgg16 import BACKBONE, FEATURES
from metalmark.workloads.vision.augment import augmented

HIDDEN = 512
LEARNING_RATE = 3e-5
"""Adam's usual 1e-3 throws the loss up tenfold before it falls: the head has 25,088 inputs."""


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    return vision.image_batch(params, rng, classes=params["classes"], normalisation=vision.IMAGENET)


def sample(params: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
    return vision.real_batch(params, images, labels, classes=params["classes"], normalisation=vision.IMAGENET)


def augment(params: Params, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return augmented(images, rng) if params["augment"] else images


def head_flops(params: Params) -> tuple[float, ...]:
    return 2.0 * FEATURES * HIDDEN, 2.0 * HIDDEN * params["classes"]


def forward_flops(params: Params) -> float:
    return BACKBONE.flops(params["pixels"]) + sum(head_flops(params))


def training_factor(params: Params) -> float:
    return vision.training_factor(params, BACKBONE, head_flops(params))


WORKLOAD = Workload(
    name="vgg16-flowers",
    title="VGG16, frozen, + Dense 512, Dense 102 on 224x224x3 images",
    params=(
        *vision.parameters(batch_size=64, pixels=224),
        Param("classes", 102, "kinds of flower", minimum=2),
        Param("augment", True, "real training images: random rotations, crops and flips"),
    ),
    build={
        "torch": "metalmark.workloads.vgg16_flowers.on_torch:build",
        "keras": "metalmark.workloads.vgg16_flowers.on_keras:build",
    },
    batch=make_batch,
    datasets=("flowers-102", "folder"),
    sample=sample,
    augment=augment,
    flops=forward_flops,
    training_factor=training_factor,
)
