"""mobilenet-cifar10: MobileNetV2 without its top, frozen, global average pool, dropout and a dense layer; Adam."""

from __future__ import annotations

import math

import numpy as np

from metalmark.model.workload import Batch, Params, Workload
from metalmark.workloads import vision
from metalmark.workloads.mobilenet_v2 import BACKBONE

CLASSES = 10
DROPOUT = 0.4
LEARNING_RATE = 5e-4
DECAY_RATE = 0.96
TRAINING_IMAGES = 50_000


def decay_steps(params: Params) -> int:
    """The rate falls once an epoch. As published it fell once in 50,000 *steps*, which no run reached."""
    return math.ceil(TRAINING_IMAGES / int(params["batch_size"]))


def normalisation(params: Params) -> vision.Normalisation:
    """MobileNetV2's own is [-1, 1]; torchvision trained the weights it publishes on ImageNet's mean and deviation."""
    return vision.IMAGENET if params["weights"] == "imagenet" else vision.CENTRED


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    return vision.image_batch(params, rng, classes=CLASSES, normalisation=normalisation(params))


def sample(params: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
    return vision.real_batch(params, images, labels, classes=CLASSES, normalisation=normalisation(params))


def head_flops() -> tuple[float, ...]:
    return (2.0 * BACKBONE.channels * CLASSES,)


def forward_flops(params: Params) -> float:
    return BACKBONE.flops(params["pixels"]) + sum(head_flops())


def training_factor(params: Params) -> float:
    return vision.training_factor(params, BACKBONE, head_flops())


WORKLOAD = Workload(
    name="mobilenet-cifar10",
    title="MobileNetV2, frozen, + global average pool, dropout 0.4, Dense 10 on 128x128x3 images",
    params=vision.parameters(batch_size=64, pixels=128),
    build={
        "torch": "metalmark.workloads.mobilenet_cifar10.on_torch:build",
        "keras": "metalmark.workloads.mobilenet_cifar10.on_keras:build",
        "mlx": "metalmark.workloads.mobilenet_cifar10.on_mlx:build",
    },
    batch=make_batch,
    datasets=("cifar-10",),
    sample=sample,
    flops=forward_flops,
    training_factor=training_factor,
)
