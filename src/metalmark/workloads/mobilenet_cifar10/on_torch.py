from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.mobilenet_cifar10 import CLASSES, DECAY_RATE, DROPOUT, LEARNING_RATE, decay_steps
from metalmark.workloads.mobilenet_v2 import BACKBONE
from metalmark.workloads.mobilenet_v2.on_torch import backbone
from metalmark.workloads.vision import is_frozen
from metalmark.workloads.vision.on_torch import Transfer, channels_first


def build(params: Params) -> Recipe:
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(DROPOUT), nn.Linear(BACKBONE.channels, CLASSES)
    )
    return Recipe(
        model=Transfer(backbone(params), head, frozen=is_frozen(params)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(_decaying_adam, decay_steps(params)),
        prepare=channels_first,
    )


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
