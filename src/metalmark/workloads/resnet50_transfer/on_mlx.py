from __future__ import annotations

from functools import partial

from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.resnet50 import BACKBONE
from metalmark.workloads.resnet50.on_mlx import backbone
from metalmark.workloads.resnet50_transfer import CLASSES, learning_rate
from metalmark.workloads.vision import is_frozen
from metalmark.workloads.vision.on_mlx import Transfer, average


def build(params: Params) -> Recipe:
    head = nn.Sequential(average, nn.Linear(BACKBONE.channels, CLASSES))
    return Recipe(
        model=Transfer(backbone(params), head, frozen=is_frozen(params)),
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, learning_rate(params), bias_correction=True),
    )
