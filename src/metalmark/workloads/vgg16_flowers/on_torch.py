from __future__ import annotations

from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vgg16 import FEATURES
from metalmark.workloads.vgg16.on_torch import backbone
from metalmark.workloads.vgg16_flowers import HIDDEN, LEARNING_RATE
from metalmark.workloads.vision import is_frozen
from metalmark.workloads.vision.on_torch import Transfer, channels_first


def build(params: Params) -> Recipe:
    head = nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, params["classes"])
    )
    return Recipe(
        model=Transfer(backbone(params), head, frozen=is_frozen(params)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
        prepare=channels_first,
    )
