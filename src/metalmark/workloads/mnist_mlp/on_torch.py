from __future__ import annotations

from functools import partial

import torch
from torch import nn

from metalmark.workload import Params, Recipe
from metalmark.workloads.mnist_mlp import CLASSES, HIDDEN, LEARNING_RATE, PIXELS


def build(_: Params) -> Recipe:
    model = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return Recipe(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
    )
