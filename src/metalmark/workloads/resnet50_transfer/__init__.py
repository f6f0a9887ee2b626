"""resnet50-transfer: ResNet50 without its top, frozen, global average pool and a dense layer; Adam."""

from __future__ import annotations

import numpy as np

from metalmark.model.workload import Batch, Params, Workload
from metalmark.workloads import vision
from metalmark.workloads.resnet50 import BACKBONE

CLASSES = 10


def learning_rate(params: Params) -> float:
    """Keras' default, as published; a tenth of it where the whole network is trained, as is usual there."""
    return 1e-3 if vision.is_frozen(params) else 1e-4


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    return vision.image_batch(params, rng, classes=CLASSES, normalisation=vision.IMAGENET)


def head_flops() -> tuple[float, ...]:
    return (2.0 * BACKBONE.channels * CLASSES,)


def forward_flops(params: Params) -> float:
    return BACKBONE.flops(params["pixels"]) + sum(head_flops())


def training_factor(params: Params) -> float:
    return vision.training_factor(params, BACKBONE, head_flops())


WORKLOAD = Workload(
    name="resnet50-transfer",
    title="ResNet50, frozen, + global average pool + Dense 10 on 224x224x3 images",
    params=vision.parameters(batch_size=32, pixels=224),
    build={
        "torch": "metalmark.workloads.resnet50_transfer.on_torch:build",
        "keras": "metalmark.workloads.resnet50_transfer.on_keras:build",
        "mlx": "metalmark.workloads.resnet50_transfer.on_mlx:build",
    },
    batch=make_batch,
    flops=forward_flops,
    training_factor=training_factor,
)
