from __future__ import annotations

from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params
from metalmark.workloads.mobilenet_v2 import BACKBONE, STEM, TOP, Block, blocks
from metalmark.workloads.vision.backbone import Conv
from metalmark.workloads.vision.on_keras import convolve, filled, images


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
