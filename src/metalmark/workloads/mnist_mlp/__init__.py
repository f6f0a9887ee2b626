"""mnist-mlp: a 784-128-10 perceptron, Adam, cross-entropy."""

from __future__ import annotations

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Workload

PIXELS, HIDDEN, CLASSES = 784, 128, 10
LEARNING_RATE = 1e-3


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"]
    return Batch(
        inputs=(rng.random((size, PIXELS), np.float32),),
        targets=rng.integers(0, CLASSES, size, np.int32),
    )


def sample(_: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
    return Batch(inputs=(images.reshape(len(images), PIXELS).astype(np.float32) / 255,), targets=labels)


def forward_flops(_: Params) -> float:
    return 2.0 * (PIXELS * HIDDEN + HIDDEN * CLASSES)


WORKLOAD = Workload(
    name="mnist-mlp",
    title="784-128-10 perceptron, Adam, cross-entropy",
    params=(Param("batch_size", 32, "samples in a step", minimum=1),),
    build={
        "torch": "metalmark.workloads.mnist_mlp.on_torch:build",
        "keras": "metalmark.workloads.mnist_mlp.on_keras:build",
        "mlx": "metalmark.workloads.mnist_mlp.on_mlx:build",
    },
    batch=make_batch,
    datasets=("mnist", "fashion-mnist"),
    sample=sample,
    flops=forward_flops,
    # The input needs no gradient, so its layer, nearly all of the work, has no third product: 2, not 3.
    training_factor=(2 * PIXELS * HIDDEN + 3 * HIDDEN * CLASSES) / (PIXELS * HIDDEN + HIDDEN * CLASSES),
)
