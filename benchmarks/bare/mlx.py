from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mlx import core as mx
from mlx import nn, optimizers


def make(model: Any, images: np.ndarray, labels: np.ndarray) -> Callable[[int], None]:
    optimizer = optimizers.Adam(1e-5)
    x, y = mx.array(images), mx.array(labels)

    def compute(model: Any, x: Any, y: Any) -> Any:
        return nn.losses.cross_entropy(model(x), y, reduction="mean")

    gradients_of = nn.value_and_grad(model, compute)

    def loop(steps: int) -> None:
        for _ in range(steps):
            loss, gradients = gradients_of(model, x, y)
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state, loss)

    return loop
