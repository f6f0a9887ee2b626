from __future__ import annotations

from functools import partial

from mlx import nn, optimizers

from metalmark.model.workload import Recipe


def perceptron(inputs: int, hidden: int, classes: int, *, learning_rate: float) -> Recipe:
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return Recipe(
        model=model,
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, learning_rate, bias_correction=True),
    )
