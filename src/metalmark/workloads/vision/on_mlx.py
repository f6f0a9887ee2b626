"""What the image workloads share on MLX: layers from a Conv, a frozen backbone that stays so, and how to fill them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mlx import core as mx
from mlx import nn

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vision import EPSILON, MOMENTUM, Arrays, Conv, is_frozen


class Transfer(nn.Module):
    """A backbone and a head. A frozen backbone has no gradients and runs in inference mode, in training too."""

    def __init__(self, backbone: Any, head: Any, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen = backbone, head, frozen
        if frozen:
            backbone.freeze()

    def train(self, mode: bool = True) -> Transfer:
        super().train(mode)
        if self.frozen:
            # Its BatchNorm would otherwise go on changing by the batches it sees, frozen weights or not.
            self.backbone.train(False)
        return self

    def __call__(self, images: Any) -> Any:
        return self.head(self.backbone(images))


def transfer_recipe(backbone: Any, head: list[Any], params: Params, optimizer: Callable[..., Any]) -> Recipe:
    return Recipe(
        model=Transfer(backbone, nn.Sequential(*head), frozen=is_frozen(params)),
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=optimizer,
    )


def conv(spec: Conv) -> Any:
    return nn.Conv2d(
        spec.inputs,
        spec.outputs,
        spec.kernel,
        stride=spec.stride,
        padding=spec.padding,
        groups=spec.groups,
        bias=not spec.norm,
    )


def norm(spec: Conv) -> Any:
    return nn.BatchNorm(spec.outputs, eps=EPSILON, momentum=MOMENTUM)


def filled(module: Any, arrays: Arrays) -> Any:
    """Return the module with these arrays in it, every one of them and all of it."""
    # (out, in, y, x) → (out, y, x, in), depthwise kernels too.
    own = {name: array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for name, array in arrays.items()}
    module.load_weights([(name, mx.array(array)) for name, array in own.items()])
    return module


def average(features: Any) -> Any:
    """Global average pooling."""
    return mx.mean(features, axis=(1, 2))
