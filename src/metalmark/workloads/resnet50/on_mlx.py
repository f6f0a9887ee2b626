from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.resnet50 import BACKBONE, CLASSES, POOL_KERNEL, POOL_STRIDE, STEM, Block, blocks, learning_rate
from metalmark.workloads.vision.on_mlx import average, conv, filled, norm, transfer_recipe


class Bottleneck(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        one, two, three = block.branch
        self.conv1, self.bn1 = conv(one), norm(one)
        self.conv2, self.bn2 = conv(two), norm(two)
        self.conv3, self.bn3 = conv(three), norm(three)
        short = block.shortcut
        self.downsample = [conv(short), norm(short)] if short else []

    def __call__(self, features: Any) -> Any:
        branch = nn.relu(self.bn1(self.conv1(features)))
        branch = nn.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        for layer in self.downsample:
            features = layer(features)
        return nn.relu(branch + features)


class ResNet50(nn.Module):
    """Its attributes are named as torchvision's, so that its arrays are too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(STEM), norm(STEM)
        self.pool = nn.MaxPool2d(POOL_KERNEL, POOL_STRIDE, padding=POOL_KERNEL // 2)
        for stage, members in groupby(blocks(), lambda block: block.stage):
            setattr(self, stage, [Bottleneck(block) for block in members])

    def __call__(self, images: Any) -> Any:
        features = self.pool(nn.relu(self.bn1(self.conv1(images))))
        for block in (*self.layer1, *self.layer2, *self.layer3, *self.layer4):
            features = block(features)
        return features


def backbone(params: Params) -> Any:
    return filled(ResNet50(), BACKBONE.arrays(params["weights"]))


def build(params: Params) -> Recipe:
    head = [average, nn.Linear(BACKBONE.channels, CLASSES)]
    adam = partial(optimizers.Adam, learning_rate(params), bias_correction=True)
    return transfer_recipe(backbone(params), head, params, adam)
