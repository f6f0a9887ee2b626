"""input-pipeline: a 256-512-10 perceptron fed by a producer whose cost is set, to see what prefetching hides."""

from __future__ import annotations

import numpy as np

from metalmark.model.plan import Feed
from metalmark.model.workload import Batch, Param, Params, Workload

FEATURES, HIDDEN, CLASSES = 256, 512, 10
LEARNING_RATE = 1e-3


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"]
    return Batch(
        inputs=(rng.random((size, FEATURES), np.float32),),
        targets=rng.integers(0, CLASSES, size, np.int32),
    )


def produce_s(params: Params) -> float:
    return float(params["produce_ms"]) / 1e3


def forward_flops(_: Params) -> float:
    return 2.0 * (FEATURES * HIDDEN + HIDDEN * CLASSES)


WORKLOAD = Workload(
    name="input-pipeline",
    title="256-512-10 perceptron fed by a producer whose cost is set",
    params=(
        Param("batch_size", 32, "samples in a step", minimum=1),
        Param("produce_ms", 5.0, "how long the producer takes for a batch, ms", minimum=0),
    ),
    build={
        "torch": "metalmark.workloads.input_pipeline.on_torch:build",
        "keras": "metalmark.workloads.input_pipeline.on_keras:build",
        "mlx": "metalmark.workloads.input_pipeline.on_mlx:build",
    },
    batch=make_batch,
    produce_s=produce_s,
    flops=forward_flops,
    training_factor=(2 * FEATURES * HIDDEN + 3 * HIDDEN * CLASSES) / (FEATURES * HIDDEN + HIDDEN * CLASSES),
    feed=Feed.PIPELINE,
)
