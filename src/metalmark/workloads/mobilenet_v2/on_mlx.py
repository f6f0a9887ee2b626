from __future__ import annotations

from typing import Any

from mlx import nn

from metalmark.model.workload import Params
from metalmark.workloads.mobilenet_v2 import BACKBONE, STEM, TOP, Block, blocks
from metalmark.workloads.vision.backbone import Conv
from metalmark.workloads.vision.on_mlx import conv, filled, norm


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
