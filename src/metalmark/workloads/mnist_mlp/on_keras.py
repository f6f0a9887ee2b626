from __future__ import annotations

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.mnist_mlp import CLASSES, HIDDEN, LEARNING_RATE, PIXELS
from metalmark.workloads.perceptron.on_keras import perceptron


def build(_: Params) -> Recipe:
    return perceptron(PIXELS, HIDDEN, CLASSES, learning_rate=LEARNING_RATE)
