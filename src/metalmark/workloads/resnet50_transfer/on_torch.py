from __future__ import annotations

from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.resnet50 import BACKBONE
from metalmark.workloads.resnet50.on_torch import backbone
from metalmark.workloads.resnet50_transfer import CLASSES, learning_rate
from metalmark.workloads.vision import is_frozen
from metalmark.workloads.vision.on_torch import Transfer, channels_first


def build(params: Params) -> Recipe:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(BACKBONE.channels, CLASSES))
    return Recipe(
        model=Transfer(backbone(params), head, frozen=is_frozen(params)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=learning_rate(params)),
        prepare=channels_first,
    )
