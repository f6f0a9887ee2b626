from __future__ import annotations

from functools import partial
from itertools import groupby

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.resnet50 import BACKBONE, CLASSES, POOL_KERNEL, POOL_STRIDE, STEM, Block, blocks, learning_rate
from metalmark.workloads.vision.on_torch import conv, filled, norm, transfer_recipe


class Bottleneck(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        one, two, three = block.branch
        self.conv1, self.bn1 = conv(one), norm(one)
        self.conv2, self.bn2 = conv(two), norm(two)
        self.conv3, self.bn3 = conv(three), norm(three)
        self.relu = nn.ReLU(inplace=True)
        short = block.shortcut
        self.downsample = nn.Sequential(conv(short), norm(short)) if short else nn.Identity()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        branch = self.relu(self.bn1(self.conv1(features)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        branch += self.downsample(features)
        return self.relu(branch)


class ResNet50(nn.Module):
    """Its attributes are named as torchvision's, so that its arrays are too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(STEM), norm(STEM), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(POOL_KERNEL, POOL_STRIDE, padding=POOL_KERNEL // 2)
        for stage, members in groupby(blocks(), lambda block: block.stage):
            self.add_module(stage, nn.Sequential(*map(Bottleneck, members)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(features))))


def backbone(params: Params) -> nn.Module:
    return filled(ResNet50(), BACKBONE.arrays(params["weights"]))


def build(params: Params) -> Recipe:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(BACKBONE.channels, CLASSES)]
    return transfer_recipe(backbone(params), head, params, partial(torch.optim.Adam, lr=learning_rate(params)))
