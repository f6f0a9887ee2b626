from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import nn

from metalmark.workload import Batch, Params, Recipe
from metalmark.workloads.conv256 import CHANNELS, CLASSES, FILTERS, KERNEL, LEARNING_RATE, pooled


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
        prepare=_channels_first,
    )


def _channels_first(batch: Batch) -> Batch:
    (images,) = batch.inputs
    return Batch(inputs=(np.ascontiguousarray(images.transpose(0, 3, 1, 2)),), targets=batch.targets)
