from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.conv256 import CHANNELS, CLASSES, FILTERS, KERNEL, LEARNING_RATE, pooled
from metalmark.workloads.vision.on_torch import channels_first


def build(params: Params) -> Recipe:
    model = nn.Sequential(
        nn.Conv2d(CHANNELS, FILTERS, KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(FILTERS * pooled(params) ** 2, CLASSES),
    )
    return Recipe(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
        prepare=channels_first,
    )
