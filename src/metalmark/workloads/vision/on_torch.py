"""The image workloads on PyTorch: modules from a Backbone, a frozen backbone that stays so, NCHW batches."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from metalmark.model.workload import Batch, Params, Recipe
from metalmark.workloads.vision import EPSILON, MOMENTUM, Arrays, Backbone, Block, Conv, Transfer, is_frozen

Layers = list[Callable[[torch.Tensor], torch.Tensor]]
"""A convolution, its BatchNorm and its ReLU."""
Step = tuple[Block, list[Layers], Layers]
"""A block, its convolutions and its shortcut."""


class TransferModel(nn.Module):
    """A backbone and a head. A frozen backbone has no gradients and runs in inference mode, in training too."""

    def __init__(self, backbone: nn.Module, head: nn.Module, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen = backbone, head, frozen
        backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> "TransferModel":
        super().train(mode)
        if self.frozen:
            # Its BatchNorm would otherwise go on changing by the batches it sees, frozen weights or not.
            self.backbone.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))


class BackboneModel(nn.Module):
    """Its modules are named as torchvision's, so that its arrays are too."""

    def __init__(self, network: Backbone) -> None:
        super().__init__()
        relu = functional.relu if network.relu_max is None else functional.relu6
        self._network, self._relu = network, partial(relu, inplace=True)
        # Plain lists: the modules are registered under their names, and only there.
        layers = {spec.name: self._layers(spec) for spec in network.convolutions()}
        steps = [
            (block, [layers[spec.name] for spec in block.convs], layers[block.shortcut.name] if block.shortcut else [])
            for block in network.blocks
        ]
        self._stages = [list(stage) for _, stage in groupby(steps, lambda step: step[0].stage)]

    # The peak memory is measured too, so how long things are kept matters: the input of a stage, a block
    # or a convolution until it ends, hence a function for each; the stem's output until the very end.
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        stem, *stages = self._stages
        first = features = self._apply_stage(stem, features)  # noqa: F841
        for stage in stages:
            features = self._apply_stage(stage, features)
        grid = self._network.grid
        return features if grid is None else functional.adaptive_avg_pool2d(features, grid)

    def _apply_stage(self, stage: list[Step], features: torch.Tensor) -> torch.Tensor:
        for block, convs, shortcut in stage:
            features = self._apply_block(block, convs, shortcut, features)
        return features

    def _apply_block(self, block: Block, convs: list[Layers], shortcut: Layers, features: torch.Tensor) -> torch.Tensor:
        branch = features
        for layers in convs:
            branch = _apply_layers(layers, branch)
        if block.adds:
            added = _apply_layers(shortcut, features)
            branch = self._relu(branch.add_(added)) if block.relu else added + branch
        return branch if block.pool is None else functional.max_pool2d(branch, *block.pool, padding=block.pool_padding)

    def _layers(self, spec: Conv) -> Layers:
        layers: list[Any] = [self._named(spec.name, conv(spec))]
        if spec.norm:
            layers.append(self._named(spec.norm, Norm(spec.outputs, eps=EPSILON, momentum=MOMENTUM)))
        return [*layers, self._relu] if spec.relu else layers

    def _named(self, name: str, module: nn.Module) -> nn.Module:
        *parents, last = name.split(".")
        parent: nn.Module = self
        for part in parents:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(last, module)
        return module


def _apply_layers(layers: Layers, features: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        features = layer(features)
    return features


def build(network: Transfer, params: Params) -> Recipe:
    head: list[nn.Module] = [] if network.backbone.grid else [nn.AdaptiveAvgPool2d(1)]
    head.append(nn.Flatten())
    if network.dropout:
        head.append(nn.Dropout(network.dropout))
    for number, (inputs, outputs) in enumerate(network.widths(params)):
        head += [nn.ReLU(inplace=True)] if number else []
        head.append(nn.Linear(inputs, outputs))
    rate, decay = network.learning_rate(params), network.decay_per_step(params)
    return Recipe(
        model=TransferModel(backbone(network.backbone, params), nn.Sequential(*head), frozen=is_frozen(params)),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=rate) if decay is None else partial(decaying_adam, rate, decay),
        prepare=channels_first,
    )


def backbone(network: Backbone, params: Params) -> nn.Module:
    return filled(BackboneModel(network), network.arrays(params["weights"]))


def decaying_adam(
    initial: float, decay: float, parameters: Iterable[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """Make an Adam whose rate is multiplied by `decay` after each step."""
    parameters = list(parameters)
    # A captured step repeats the same numbers for ever; a rate that is an array on the device falls inside it too.
    captured = options.get("capturable", False)
    rate = torch.tensor(initial, device=parameters[0].device) if captured else initial
    optimizer = torch.optim.Adam(parameters, lr=rate, **options)

    def lower(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= decay

    # Keras and MLX ask their schedule at each step, inside the optimiser; so does this.
    optimizer.register_step_post_hook(lower)
    return optimizer


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


def filled(module: nn.Module, arrays: Arrays) -> nn.Module:
    """Return the module with these arrays in it, every one of them and all of it."""
    counters = {name: value for name, value in module.state_dict().items() if name.endswith("num_batches_tracked")}
    module.load_state_dict({**counters, **{name: torch.tensor(array) for name, array in arrays.items()}})
    return module


def channels_first(batch: Batch) -> Batch:
    (images,) = batch.inputs
    return Batch(inputs=(np.ascontiguousarray(images.transpose(0, 3, 1, 2)),), targets=batch.targets)
