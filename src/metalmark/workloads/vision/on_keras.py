"""The image workloads on Keras: layers from a Backbone, under its names, and how to fill them."""

from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads import ADAM_EPSILON
from metalmark.workloads.vision import CHANNELS, EPSILON, MOMENTUM, Arrays, Backbone, Conv, Transfer, is_frozen


def build(network: Transfer, params: Params) -> Recipe:
    head: list[Any] = [layers.Flatten() if network.backbone.grid else layers.GlobalAveragePooling2D()]
    if network.dropout:
        head.append(layers.Dropout(network.dropout))
    head += [layers.Dense(width, activation="relu") for width in network.hidden]
    # Logits in float32 whatever the policy, as Keras advises: half precision would spoil the loss.
    head.append(layers.Dense(network.classes(params), dtype="float32"))
    body = backbone(network.backbone, params)
    # Keras runs a frozen backbone's BatchNorm in inference mode by itself.
    body.trainable = not is_frozen(params)
    inputs = images(params)
    features = body(inputs)
    for layer in head:
        features = layer(features)
    rate = network.learning_rate(params)
    if network.decay is not None:
        factor, steps = network.decay(params)
        rate = keras.optimizers.schedules.ExponentialDecay(rate, steps, factor)
    return Recipe(
        model=keras.Model(inputs, features),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, rate, epsilon=ADAM_EPSILON),
    )


def backbone(network: Backbone, params: Params) -> Any:
    inputs = features = images(params)
    for block in network.blocks:
        branch = features
        for spec in block.convs:
            branch = convolve(branch, spec)
            if spec.relu:
                branch = layers.ReLU(max_value=network.relu_max)(branch)
        if block.adds:
            branch = layers.Add()([branch, convolve(features, block.shortcut) if block.shortcut else features])
            branch = layers.ReLU()(branch) if block.relu else branch
        if block.pool is not None:
            if block.pool_padding:
                # Zeros pad as well as minus infinity here: nothing is below zero after a ReLU.
                branch = layers.ZeroPadding2D(block.pool_padding)(branch)
            branch = layers.MaxPooling2D(*block.pool)(branch)
        features = branch
    if network.grid:
        features = AdaptiveAverage(network.grid)(features)
    return filled(keras.Model(inputs, features), network.arrays(params["weights"]))


def images(params: Params) -> Any:
    side = params["pixels"]
    return keras.Input((side, side, CHANNELS))


def convolve(features: Any, spec: Conv) -> Any:
    """Apply the convolution and, where it has one, its BatchNorm."""
    padding = "same"
    if spec.stride > 1 and spec.padding:
        # Keras' own padding is lopsided on a stride, and on another side than in PyTorch and MLX.
        features = layers.ZeroPadding2D(spec.padding)(features)
        padding = "valid"
    options = {"strides": spec.stride, "padding": padding, "use_bias": not spec.norm, "name": spec.name}
    # `filled` writes every kernel, so drawing random ones first would be for nothing.
    if spec.groups == 1:
        features = layers.Conv2D(spec.outputs, spec.kernel, kernel_initializer="zeros", **options)(features)
    else:
        features = layers.DepthwiseConv2D(spec.kernel, depthwise_initializer="zeros", **options)(features)
    if spec.norm:
        # Keras counts what it keeps of the old statistics; the others count what they take of the new.
        features = layers.BatchNormalization(momentum=1 - MOMENTUM, epsilon=EPSILON, name=spec.norm)(features)
    return features


def filled(model: Any, arrays: Arrays) -> Any:
    """Return the model with these arrays in it, every one of them and all of it."""
    left = dict(arrays)
    for layer in model.layers:
        if layer.weights:
            layer.set_weights(_weights(layer, left))
    assert not left, f"no layer for {sorted(left)}"
    return model


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


def _weights(layer: Any, left: Arrays) -> list[Any]:
    """Return a layer's weights in Keras' order and layout, taken out of `left`."""
    if isinstance(layer, layers.BatchNormalization):
        return [left.pop(f"{layer.name}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
    kernel = left.pop(f"{layer.name}.weight")
    # (out, in, y, x) → (y, x, in, out); a depthwise kernel's inputs are PyTorch's outputs → (y, x, in, 1).
    depthwise = isinstance(layer, layers.DepthwiseConv2D)
    kernels = [kernel.transpose(2, 3, 0, 1) if depthwise else kernel.transpose(2, 3, 1, 0)]
    return [*kernels, left.pop(f"{layer.name}.bias")] if layer.use_bias else kernels
