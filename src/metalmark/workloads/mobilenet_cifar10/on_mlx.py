from __future__ import annotations

from functools import partial

from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.mobilenet_cifar10 import CLASSES, DECAY_RATE, DROPOUT, LEARNING_RATE, decay_steps
from metalmark.workloads.mobilenet_v2 import BACKBONE
from metalmark.workloads.mobilenet_v2.on_mlx import backbone
from metalmark.workloads.vision import is_frozen
from metalmark.workloads.vision.on_mlx import Transfer, average


def build(params: Params) -> Recipe:
    head = nn.Sequential(average, nn.Dropout(DROPOUT), nn.Linear(BACKBONE.channels, CLASSES))
    rate = optimizers.exponential_decay(LEARNING_RATE, DECAY_RATE ** (1 / decay_steps(params)))
    return Recipe(
        model=Transfer(backbone(params), head, frozen=is_frozen(params)),
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, rate, bias_correction=True),
    )
