from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.resnet50 import BACKBONE, CLASSES, POOL_KERNEL, POOL_STRIDE, STEM, Block, blocks, learning_rate
from metalmark.workloads.vision.on_keras import classes, convolve, filled, images, transfer_recipe


def backbone(params: Params) -> Any:
    inputs = images(params)
    features = layers.ReLU()(convolve(inputs, STEM))
    # Zeros pad as well as minus infinity here: nothing is below zero after a ReLU.
    features = layers.ZeroPadding2D(POOL_KERNEL // 2)(features)
    features = layers.MaxPooling2D(POOL_KERNEL, POOL_STRIDE)(features)
    for block in blocks():
        features = _bottleneck(features, block)
    return filled(keras.Model(inputs, features), BACKBONE.arrays(params["weights"]))


def _bottleneck(features: Any, block: Block) -> Any:
    one, two, three = block.branch
    branch = layers.ReLU()(convolve(features, one))
    branch = layers.ReLU()(convolve(branch, two))
    branch = convolve(branch, three)
    if block.shortcut is not None:
        features = convolve(features, block.shortcut)
    return layers.ReLU()(layers.Add()([branch, features]))


def build(params: Params) -> Recipe:
    head = [layers.GlobalAveragePooling2D(), classes(CLASSES)]
    return transfer_recipe(backbone(params), head, params, partial(keras.optimizers.Adam, learning_rate(params)))
