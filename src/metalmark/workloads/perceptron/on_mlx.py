from functools import partial

from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.perceptron import CLASSES, LEARNING_RATE, Perceptron


def build(perceptron: Perceptron, _: Params) -> Recipe:
    inputs, hidden = perceptron.inputs, perceptron.hidden
    return Recipe(
        model=nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)),
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, LEARNING_RATE, bias_correction=True),
    )
