"""What the image workloads share on Keras: layers from a Conv, under its names, and how to fill them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vision import CHANNELS, EPSILON, MOMENTUM, Arrays, Conv, is_frozen


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


def transfer_recipe(backbone: Any, head: list[Any], params: Params, optimizer: Callable[..., Any]) -> Recipe:
    # Keras runs a frozen backbone's BatchNorm in inference mode by itself.
    backbone.trainable = not is_frozen(params)
    inputs = images(params)
    features = backbone(inputs)
    for layer in head:
        features = layer(features)
    return Recipe(
        model=keras.Model(inputs, features),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=optimizer,
    )


def classes(count: int) -> Any:
    """Make the last layer: its logits are float32 whatever the policy, as Keras advises, since half precision would
    spoil the loss."""
    return layers.Dense(count, dtype="float32")


def _weights(layer: Any, left: Arrays) -> list[Any]:
    """Return a layer's weights in Keras' order and layout, taken out of `left`."""
    if isinstance(layer, layers.BatchNormalization):
        return [left.pop(f"{layer.name}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
    kernel = left.pop(f"{layer.name}.weight")
    # (out, in, y, x) → (y, x, in, out); a depthwise kernel's inputs are PyTorch's outputs → (y, x, in, 1).
    depthwise = isinstance(layer, layers.DepthwiseConv2D)
    kernels = [kernel.transpose(2, 3, 0, 1) if depthwise else kernel.transpose(2, 3, 1, 0)]
    return [*kernels, left.pop(f"{layer.name}.bias")] if layer.use_bias else kernels
