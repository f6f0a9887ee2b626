from __future__ import annotations

from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Recipe


def perceptron(inputs: int, hidden: int, classes: int, *, learning_rate: float) -> Recipe:
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return Recipe(model=model, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=learning_rate))
