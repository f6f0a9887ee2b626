from __future__ import annotations

from functools import partial

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vgg16 import BACKBONE, FEATURES, GRID, HIDDEN, LEARNING_RATE, stages
from metalmark.workloads.vision.on_torch import conv, filled, transfer_recipe


class Vgg16(nn.Module):
    """Its attributes are named as torchvision's, so that its arrays are too."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for convs in stages():
            for spec in convs:
                layers += [conv(spec), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(GRID)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.avgpool(self.features(images))


def backbone(params: Params) -> nn.Module:
    return filled(Vgg16(), BACKBONE.arrays(params["weights"]))


def build(params: Params) -> Recipe:
    head = [nn.Flatten(), nn.Linear(FEATURES, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, params["classes"])]
    return transfer_recipe(backbone(params), head, params, partial(torch.optim.Adam, lr=LEARNING_RATE))
