from __future__ import annotations

from functools import partial

from mlx import nn, optimizers

from metalmark.workload import Params, Recipe
from metalmark.workloads.mnist_mlp import CLASSES, HIDDEN, LEARNING_RATE, PIXELS


def build(_: Params) -> Recipe:
    model = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return Recipe(
        model=model,
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, LEARNING_RATE),
    )
