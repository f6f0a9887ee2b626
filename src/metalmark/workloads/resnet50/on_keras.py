from __future__ import annotations

from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params
from metalmark.workloads.resnet50 import BACKBONE, POOL_KERNEL, POOL_STRIDE, STEM, Block, blocks
from metalmark.workloads.vision.on_keras import convolve, filled, images


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
