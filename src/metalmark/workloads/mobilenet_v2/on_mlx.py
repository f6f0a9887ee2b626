from __future__ import annotations

from functools import partial
from typing import Any

from mlx import nn, optimizers

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
from metalmark.workloads.vision.on_mlx import average, conv, filled, norm, transfer_recipe


class InvertedResidual(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        *hidden, projection = block.convs
        self.conv: list[Any] = [*map(_pair, hidden), conv(projection), norm(projection)]
        self.adds = block.adds

    def __call__(self, features: Any) -> Any:
        *hidden, projection, last = self.conv
        branch = features
        for pair in hidden:
            branch = _activated(branch, pair)
        branch = last(projection(branch))
        return features + branch if self.adds else branch


class MobileNetV2(nn.Module):
    """Its attributes are named as torchvision's, so that its arrays are too."""

    def __init__(self) -> None:
        super().__init__()
        self.features: list[Any] = [_pair(STEM), *map(InvertedResidual, blocks()), _pair(TOP)]

    def __call__(self, images: Any) -> Any:
        stem, *middle, top = self.features
        features = _activated(images, stem)
        for block in middle:
            features = block(features)
        return _activated(features, top)


def backbone(params: Params) -> Any:
    return filled(MobileNetV2(), BACKBONE.arrays(params["weights"]))


def _pair(spec: Conv) -> list[Any]:
    return [conv(spec), norm(spec)]


def _activated(features: Any, pair: list[Any]) -> Any:
    convolution, normalisation = pair
    return nn.relu6(normalisation(convolution(features)))


def build(params: Params) -> Recipe:
    head = [average, nn.Dropout(DROPOUT), nn.Linear(BACKBONE.channels, CLASSES)]
    rate = optimizers.exponential_decay(LEARNING_RATE, DECAY_RATE ** (1 / decay_steps(params)))
    return transfer_recipe(backbone(params), head, params, partial(optimizers.Adam, rate, bias_correction=True))
