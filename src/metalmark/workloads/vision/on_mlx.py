"""The image workloads on MLX: modules from a Backbone, and a frozen backbone that stays so."""

from functools import partial
from itertools import pairwise
from typing import Any

from mlx import core as mx
from mlx import nn, optimizers

from metalmark.model.workload import Params, Recipe
from metalmark.workloads.vision import EPSILON, MOMENTUM, Arrays, Backbone, Conv, Transfer, is_frozen


class TransferModel(nn.Module):
    """A backbone and a head. A frozen backbone has no gradients and runs in inference mode, in training too."""

    def __init__(self, backbone: Any, head: Any, *, frozen: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.frozen = backbone, head, frozen
        if frozen:
            backbone.freeze()

    def train(self, mode: bool = True) -> "TransferModel":
        super().train(mode)
        if self.frozen:
            # Its BatchNorm would otherwise go on changing by the batches it sees, frozen weights or not.
            self.backbone.train(False)
        return self

    def __call__(self, images: Any) -> Any:
        return self.head(self.backbone(images))


class BackboneModel(nn.Module):
    """Its modules are named as torchvision's, so that its arrays are too."""

    def __init__(self, network: Backbone) -> None:
        super().__init__()
        relu = nn.relu if network.relu_max is None else nn.relu6
        layers = {spec.name: [*self._layers(spec), *([relu] if spec.relu else [])] for spec in network.convolutions()}

        def forward(features: Any) -> Any:
            for block in network.blocks:
                branch = features
                for spec in block.convs:
                    branch = _through(layers[spec.name], branch)
                if block.adds:
                    branch = branch + (_through(layers[block.shortcut.name], features) if block.shortcut else features)
                    branch = relu(branch) if block.relu else branch
                if block.pool is not None:
                    branch = nn.MaxPool2d(*block.pool, padding=block.pool_padding)(branch)
                features = branch
            return features

        # A function, not lists of modules: MLX would register what is in those a second time.
        self._forward = forward

    def __call__(self, images: Any) -> Any:
        return self._forward(images)

    def _layers(self, spec: Conv) -> list[Any]:
        layers = [self._named(spec.name, conv(spec))]
        if spec.norm:
            layers.append(self._named(spec.norm, nn.BatchNorm(spec.outputs, eps=EPSILON, momentum=MOMENTUM)))
        return layers

    def _named(self, name: str, module: Any) -> Any:
        parts = name.split(".")
        parent: Any = self
        for part, following in pairwise(parts):
            # MLX keeps what is numbered in lists.
            parent = _added(parent, part, [] if following.isdigit() else nn.Module())
        return _added(parent, parts[-1], module)


def _added(parent: Any, name: str, child: Any) -> Any:
    """Return the parent's child of that name, which becomes `child` where there is none."""
    if not isinstance(parent, list):
        return parent.setdefault(name, child)
    if int(name) == len(parent):
        parent.append(child)
    return parent[int(name)]


def build(network: Transfer, params: Params) -> Recipe:
    head: list[Any] = [average]
    if network.dropout:
        head.append(nn.Dropout(network.dropout))
    for number, (inputs, outputs) in enumerate(network.widths(params)):
        head += [nn.ReLU()] if number else []
        head.append(nn.Linear(inputs, outputs))
    rate, decay = network.learning_rate(params), network.decay_per_step(params)
    schedule = rate if decay is None else optimizers.exponential_decay(rate, decay)
    return Recipe(
        model=TransferModel(backbone(network.backbone, params), nn.Sequential(*head), frozen=is_frozen(params)),
        loss=partial(nn.losses.cross_entropy, reduction="mean"),
        optimizer=partial(optimizers.Adam, schedule, bias_correction=True),
    )


def backbone(network: Backbone, params: Params) -> Any:
    return filled(BackboneModel(network), network.arrays(params["weights"]))


def _through(layers: list[Any], features: Any) -> Any:
    for layer in layers:
        features = layer(features)
    return features


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


def filled(module: Any, arrays: Arrays) -> Any:
    """Return the module with these arrays in it, every one of them and all of it."""
    # (out, in, y, x) → (out, y, x, in), depthwise kernels too.
    own = {name: array.transpose(0, 2, 3, 1) if array.ndim == 4 else array for name, array in arrays.items()}
    module.load_weights([(name, mx.array(array)) for name, array in own.items()])
    return module


def average(features: Any) -> Any:
    """Global average pooling."""
    return mx.mean(features, axis=(1, 2))
