from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.mobilenet_v2 import (
    BACKBONE,
    CLASSES,
    DECAY_RATE,
    DROPOUT,
    LEARNING_RATE,
    STEM,
    TOP,
    Block,
    blocks,
    decay_steps,
)
from metalmark.workloads.vision import Conv
from metalmark.workloads.vision.on_keras import classes, convolve, filled, images, transfer_recipe


def backbone(params: Params) -> Any:
    inputs = images(params)
    features = _activated(inputs, STEM)
    for block in blocks():
        features = _inverted_residual(features, block)
    return filled(keras.Model(inputs, _activated(features, TOP)), BACKBONE.arrays(params["weights"]))


def _inverted_residual(features: Any, block: Block) -> Any:
    *hidden, projection = block.convs
    branch = features
    for spec in hidden:
        branch = _activated(branch, spec)
    branch = convolve(branch, projection)
    return layers.Add()([features, branch]) if block.adds else branch


def _activated(features: Any, spec: Conv) -> Any:
    return layers.ReLU(max_value=6.0)(convolve(features, spec))


def build(params: Params) -> Recipe:
    head = [layers.GlobalAveragePooling2D(), layers.Dropout(DROPOUT), classes(CLASSES)]
    rate = keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, decay_steps(params), DECAY_RATE)
    return transfer_recipe(backbone(params), head, params, partial(keras.optimizers.Adam, rate))
