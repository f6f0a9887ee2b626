from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vgg16 import BACKBONE, GRID, HIDDEN, LEARNING_RATE, stages
from metalmark.workloads.vision.on_keras import classes, convolve, filled, images, transfer_recipe


class AdaptiveAverage(layers.Layer):
    """Averages to a grid of a fixed side as PyTorch's layer does, by cells that overlap where they must."""

    def __init__(self, grid: int) -> None:
        super().__init__()
        self.grid = grid

    def call(self, features: Any) -> Any:
        height, width = features.shape[1:3]
        if (height, width) == (self.grid, self.grid):
            return features
        rows, columns = (keras.ops.cast(shares(side, self.grid), features.dtype) for side in (height, width))
        return keras.ops.einsum("ih,jw,nhwc->nijc", rows, columns, features)


def shares(side: int, grid: int) -> np.ndarray:
    """A row for each cell: which of `side` places it averages, and by what share."""
    matrix = np.zeros((grid, side), np.float32)
    for cell in range(grid):
        begin, end = cell * side // grid, -(-(cell + 1) * side // grid)
        matrix[cell, begin:end] = 1 / (end - begin)
    return matrix


def backbone(params: Params) -> Any:
    inputs = features = images(params)
    for convs in stages():
        for spec in convs:
            features = layers.ReLU()(convolve(features, spec))
        features = layers.MaxPooling2D(2)(features)
    return filled(keras.Model(inputs, AdaptiveAverage(GRID)(features)), BACKBONE.arrays(params["weights"]))


def build(params: Params) -> Recipe:
    head = [layers.Flatten(), layers.Dense(HIDDEN, activation="relu"), classes(params["classes"])]
    return transfer_recipe(backbone(params), head, params, partial(keras.optimizers.Adam, LEARNING_RATE))
