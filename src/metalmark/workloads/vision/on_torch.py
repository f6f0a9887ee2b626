"""What the image workloads share on PyTorch: layers from a Conv, a frozen backbone that stays so, NCHW batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from metalmark.model.workload import Batch, Params, Recipe
from metalmark.workloads.vision import EPSILON, MOMENTUM, Arrays, Conv, is_frozen


class Transfer(nn.Module):
    """A backbone and a head. A frozen backbone has no gradients and runs in inference mode, in training too."""

    def __init__(self, backbone: nn.Module, head: nn.Module, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen = backbone, head, frozen
        backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        if self.frozen:
            # Its BatchNorm would otherwise go on changing by the batches it sees, frozen weights or not.
            self.backbone.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))


def transfer_recipe(
    backbone: nn.Module, head: list[nn.Module], params: Params, optimizer: Callable[..., Any]
) -> Recipe:
    return Recipe(
        model=Transfer(backbone, nn.Sequential(*head), frozen=is_frozen(params)),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        prepare=channels_first,
    )


def conv(spec: Conv) -> nn.Conv2d:
    return nn.Conv2d(
        spec.inputs,
        spec.outputs,
        spec.kernel,
        stride=spec.stride,
        padding=spec.padding,
        groups=spec.groups,
        bias=not spec.norm,
    )


class Norm(nn.BatchNorm2d):
    """Counts no batches: with a fixed momentum nobody reads that, and counting is one kernel per layer and step."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(
            features,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training,
            momentum=MOMENTUM,
            eps=self.eps,
        )


def norm(spec: Conv) -> Norm:
    return Norm(spec.outputs, eps=EPSILON, momentum=MOMENTUM)


def filled(module: nn.Module, arrays: Arrays) -> nn.Module:
    """Return the module with these arrays in it, every one of them and all of it."""
    counters = {name: value for name, value in module.state_dict().items() if name.endswith("num_batches_tracked")}
    module.load_state_dict({**counters, **{name: torch.tensor(array) for name, array in arrays.items()}})
    return module


def channels_first(batch: Batch) -> Batch:
    (images,) = batch.inputs
    return Batch(inputs=(np.ascontiguousarray(images.transpose(0, 3, 1, 2)),), targets=batch.targets)
