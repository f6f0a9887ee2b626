from functools import partial

from mlx import core as mx
from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.conv256 import CHANNELS, CLASSES, FILTERS, KERNEL, LEARNING_RATE, pooled


def build(params: Params) -> Recipe:
    model = nn.Sequential(
        nn.Conv2d(CHANNELS, FILTERS, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        partial(mx.flatten, start_axis=1),
        nn.Linear(FILTERS * pooled(params) ** 2, CLASSES),
    )
    return Recipe(
        model=model,
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, LEARNING_RATE, bias_correction=True),
    )
