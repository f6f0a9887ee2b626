from __future__ import annotations

import torch
from torch import nn

from metalmark.model.workload import Params
from metalmark.workloads.mobilenet_v2 import BACKBONE, STEM, TOP, Block, blocks
from metalmark.workloads.vision.backbone import Conv
from metalmark.workloads.vision.on_torch import conv, filled, norm


class InvertedResidual(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        *hidden, projection = block.convs
        self.conv = nn.Sequential(*map(_activated, hidden), conv(projection), norm(projection))
        self.adds = block.adds

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.conv(features) if self.adds else self.conv(features)


class MobileNetV2(nn.Module):
    """Its attributes are named as torchvision's, so that its arrays are too."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(_activated(STEM), *map(InvertedResidual, blocks()), _activated(TOP))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.features(images)


def backbone(params: Params) -> nn.Module:
    return filled(MobileNetV2(), BACKBONE.arrays(params["weights"]))


def _activated(spec: Conv) -> nn.Sequential:
    return nn.Sequential(conv(spec), norm(spec), nn.ReLU6(inplace=True))
