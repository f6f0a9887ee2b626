"""conv256: one 3x3 convolution of 32 filters, a 2x2 pool and a dense layer on 256x256 images."""

import numpy as np

from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import builders

FILTERS, KERNEL, CHANNELS, CLASSES = 32, 3, 3, 10
LEARNING_RATE = 1e-5


def pooled(params: Params) -> int:
    """Return the side of the image after a valid convolution and a pool of two."""
    return (int(params["pixels"]) - KERNEL + 1) // 2


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    size, side = params["batch_size"], params["pixels"]
    return Batch(
        inputs=(rng.standard_normal((size, side, side, CHANNELS), np.float32),),
        targets=rng.integers(0, CLASSES, size, np.int32),
    )


def forward_flops(params: Params) -> float:
    side = int(params["pixels"]) - KERNEL + 1
    convolution = 2.0 * side * side * FILTERS * KERNEL * KERNEL * CHANNELS
    return convolution + 2.0 * pooled(params) ** 2 * FILTERS * CLASSES


WORKLOAD = Workload(
    name="conv256",
    title="Conv 32 3x3, pool, Dense 10 on 256x256x3 images",
    params=(
        Param("batch_size", 32, "samples per step", minimum=1),
        Param("pixels", 256, "side of the square image", minimum=8),
    ),
    build=builders(__name__),
    batch=make_batch,
    flops=forward_flops,
    # The image needs no gradient, and the convolution on it is nearly all of the work.
    training_factor=2.0,
)
