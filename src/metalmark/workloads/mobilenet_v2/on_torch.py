from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

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
from metalmark.workloads.vision.on_torch import conv, filled, norm, transfer_recipe


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


def build(params: Params) -> Recipe:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(DROPOUT), nn.Linear(BACKBONE.channels, CLASSES)]
    return transfer_recipe(backbone(params), head, params, partial(_decaying_adam, decay_steps(params)))


def _decaying_adam(steps: int, parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    parameters = list(parameters)
    # A captured step repeats the same numbers for ever; a rate that is an array on the device falls inside it too.
    captured = options.get("capturable", False)
    rate = torch.tensor(LEARNING_RATE, device=parameters[0].device) if captured else LEARNING_RATE
    optimizer = torch.optim.Adam(parameters, lr=rate, **options)
    decay = DECAY_RATE ** (1 / steps)

    def lower(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= decay

    # Keras and MLX ask their schedule at each step, inside the optimiser; so does this.
    optimizer.register_step_post_hook(lower)
    return optimizer
