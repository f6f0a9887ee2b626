from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.perceptron import CLASSES, LEARNING_RATE, Perceptron


def build(perceptron: Perceptron, _: Params) -> Recipe:
    inputs, hidden = perceptron.inputs, perceptron.hidden
    return Recipe(
        model=nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
    )
