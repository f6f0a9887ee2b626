"""A workload of a user's own: a small network with dropout and a rate that falls at each step, on every framework.

Its loss is NaN from step `nan_at` on, for tests that want one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from metalmark import Batch, Param, Recipe, Workload

RATE, DECAY, DROPOUT, HIDDEN, CLASSES = 0.01, 0.9, 0.4, 16, 10


def sample(_: Any, images: np.ndarray, labels: np.ndarray) -> Batch:
    return Batch(inputs=(images.reshape(len(images), -1).astype(np.float32) / 255,), targets=labels)


def batch(params: Any, rng: np.random.Generator) -> Batch:
    size = params["batch_size"]
    return Batch(inputs=(rng.random((size, 48), np.float32),), targets=rng.integers(0, CLASSES, size, np.int32))


def on_torch(params: Any) -> Recipe:
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Linear(params.get("inputs", 48), HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, CLASSES)
    )

    steps = iter(range(1, 1 << 60))

    def loss(outputs: Any, targets: Any) -> Any:
        value = nn.functional.cross_entropy(outputs, targets)
        broken = outputs.requires_grad and next(steps) == params.get("nan_at", 0)
        return value * float("nan") if broken else value

    def optimizer(parameters: Iterable[Any], **options: Any) -> Any:
        made = torch.optim.Adam(parameters, lr=RATE, **options)

        def lower(optimizer: Any, *_: object) -> None:
            for group in optimizer.param_groups:
                group["lr"] *= DECAY

        made.register_step_post_hook(lower)
        return made

    return Recipe(model=model, loss=loss, optimizer=optimizer)


def on_keras(params: Any) -> Recipe:
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((params.get("inputs", 48),)),
            layers.Dense(HIDDEN, activation="relu"),
            layers.Dropout(DROPOUT),
            layers.Dense(CLASSES, dtype="float32"),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(RATE, 1, DECAY)
    return Recipe(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, rate),
    )


def on_mlx(params: Any) -> Recipe:
    from mlx import nn, optimizers

    model = nn.Sequential(
        nn.Linear(params.get("inputs", 48), HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, CLASSES)
    )
    return Recipe(
        model=model,
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, optimizers.exponential_decay(RATE, DECAY), bias_correction=True),
    )


net = Workload(
    name="net",
    title="a small network with dropout",
    params=(
        Param("batch_size", 8, "samples per step", minimum=1),
        Param("inputs", 784, "values of an image", minimum=1),
        Param("nan_at", 0, "the step whose loss is NaN", minimum=0),
    ),
    build={"torch": on_torch, "keras": on_keras, "mlx": on_mlx},
    batch=batch,
    datasets=("mnist", "fashion-mnist"),
    sample=sample,
)
