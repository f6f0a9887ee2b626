from __future__ import annotations

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.input_pipeline import CLASSES, FEATURES, HIDDEN, LEARNING_RATE
from metalmark.workloads.perceptron.on_mlx import perceptron


def build(_: Params) -> Recipe:
    return perceptron(FEATURES, HIDDEN, CLASSES, learning_rate=LEARNING_RATE)
