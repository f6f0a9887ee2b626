"""What the image workloads share: backbones as data, their parameters and batches, and transfer learning on them.

A backbone is the list of its convolutions under torchvision's names. Parameter counts, FLOPs, weights and every
framework's modules come from that list, so that they can't disagree.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from metalmark.data.dataset import resize_nearest
from metalmark.errors import FormatError
from metalmark.model.workload import Batch, Param, Params, Workload
from metalmark.workloads import ALL_FAMILIES, builders, weights

CHANNELS = 3
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the images torchvision's weights were trained on."""
CENTRED = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""[0, 1] as [-1, 1]."""
EPSILON, MOMENTUM = 1e-5, 0.1
"""Of every BatchNorm, as torchvision has them; the momentum is the share of the new batch."""
RANDOM_SEED = 0

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A square convolution, padded by half its kernel on each side, and the BatchNorm after it, if any."""

    name: str
    norm: str = ""
    """The name of its BatchNorm; a convolution without one has a bias."""
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    relu: bool = True
    """Whether a ReLU follows at once."""
    scale: float = 1.0
    """What its BatchNorm multiplies by, at the start."""

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def fan_in(self) -> int:
        return self.inputs // self.groups * self.kernel**2

    def side(self, side: int) -> int:
        """Return the side of its output, given its input's."""
        return -(-side // self.stride)

    def flops(self, side: int) -> float:
        """Return the work on an input of this side: 2 for a multiplication and its addition."""
        return 2.0 * self.side(side) ** 2 * self.outputs * self.fan_in

    def shapes(self) -> Shapes:
        kernel: Shapes = {f"{self.name}.weight": (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)}
        each = (self.outputs,)
        if not self.norm:
            return kernel | {f"{self.name}.bias": each}
        return kernel | {f"{self.norm}.{part}": each for part in ("weight", "bias", "running_mean", "running_var")}

    def start(self, rng: np.random.Generator) -> Arrays:
        """Return its arrays before any training, by He's initialisation: the signal keeps its size through frozen,
        untrained layers.

        PyTorch's and torchvision's own make it vanish (depthwise) or explode (residual sums) once BatchNorm runs in
        inference mode with statistics that nobody has measured; the head would then have nothing to learn from.
        """
        spread = math.sqrt((2.0 if self.relu else 1.0) / self.fan_in)
        fills = {"running_mean": 0.0, "running_var": 1.0, "bias": 0.0, "weight": self.scale}
        arrays = {}
        for name, shape in self.shapes().items():
            if len(shape) == 4:
                arrays[name] = rng.standard_normal(shape, np.float32) * np.float32(spread)
            else:
                arrays[name] = np.full(shape, fills[name.rpartition(".")[2]], np.float32)
        return arrays


@dataclass(frozen=True, kw_only=True)
class Block:
    """Convolutions one after another, then, where it has them, the sum with its input, a ReLU and a max pool."""

    convs: tuple[Conv, ...]
    adds: bool = False
    """Whether the input, through `shortcut` if there is one, is added to the output."""
    shortcut: Conv | None = None
    relu: bool = False
    """Whether a ReLU follows the sum."""
    pool: tuple[int, int] | None = None
    """The kernel and the stride of the max pool."""

    @property
    def stage(self) -> str:
        return self.convs[0].name.partition(".")[0]

    @property
    def pool_padding(self) -> int:
        return (self.pool[0] - 1) // 2 if self.pool else 0


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A network without its top, named as torchvision names it."""

    name: str
    blocks: tuple[Block, ...]
    relu_max: float | None = None
    """What its ReLUs cut off at, where they do."""
    grid: int | None = None
    """The side its output is averaged to, whatever the size of the image."""
    rename: Callable[[str], str] = str
    """Turns another library's name of an array into torchvision's; names it does not know stay."""

    @property
    def features(self) -> int:
        """How many numbers a head gets per image: of each channel its average, or its grid."""
        return self.blocks[-1].convs[-1].outputs * (self.grid or 1) ** 2

    def sized(self, pixels: int) -> Iterator[tuple[Conv, int]]:
        """Yield each convolution and the side of its input, for images of this side."""
        side = pixels
        for block in self.blocks:
            entering = side
            for conv in block.convs:
                yield conv, side
                side = conv.side(side)
            if block.shortcut is not None:
                yield block.shortcut, entering
            if block.pool is not None:
                kernel, stride = block.pool
                side = (side + 2 * block.pool_padding - kernel) // stride + 1

    def convolutions(self) -> list[Conv]:
        return [conv for conv, _ in self.sized(224)]

    def shapes(self) -> Shapes:
        return {name: shape for conv in self.convolutions() for name, shape in conv.shapes().items()}

    def flops(self, pixels: int) -> float:
        return sum(conv.flops(side) for conv, side in self.sized(pixels))

    def arrays(self, weights_choice: str) -> Arrays:
        """Return every array of it: the same random ones in every framework, or those that `--weights` names."""
        path = weights.find(weights_choice, self.name)
        if path is not None:
            return weights.load(path, self.shapes(), self.rename)
        rng = np.random.default_rng(RANDOM_SEED)
        return {name: array for conv in self.convolutions() for name, array in conv.start(rng).items()}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A backbone with a head of dense layers, and how they are trained: by Adam."""

    backbone: Backbone
    hidden: tuple[int, ...] = ()
    """Widths of the head's hidden layers."""
    classes: Callable[[Params], int]
    dropout: float = 0.0
    learning_rate: Callable[[Params], float]
    decay: Callable[[Params], tuple[float, int]] | None = None
    """By which factor the learning rate falls, smoothly, in how many steps."""

    def widths(self, params: Params) -> list[tuple[int, int]]:
        """Return inputs and outputs of each dense layer."""
        return list(pairwise((self.backbone.features, *self.hidden, self.classes(params))))

    def decay_per_step(self, params: Params) -> float | None:
        if self.decay is None:
            return None
        factor, steps = self.decay(params)
        return float(factor ** (1 / steps))


def is_frozen(params: Params) -> bool:
    return bool(params["train"] == "head")


def transfer_workload(
    network: Transfer,
    *,
    batch_size: int,
    pixels: int,
    params: tuple[Param, ...] = (),
    normalisation: Callable[[Params], Normalisation] = lambda _: IMAGENET,
    datasets: tuple[str, ...] = (),
    families: Sequence[str] = ALL_FAMILIES,
    **options: Any,
) -> Workload:
    """Make the workload that trains the head, or all, of a network."""
    backbone = network.backbone

    def make_batch(params: Params, rng: np.random.Generator) -> Batch:
        """Random 8-bit images, normalised as the real ones are, with random labels."""
        size, side = params["batch_size"], params["pixels"]
        images = _normalised(rng.integers(0, 256, (size, side, side, CHANNELS), np.uint8), normalisation(params))
        return Batch(inputs=(images,), targets=rng.integers(0, network.classes(params), size, np.int32))

    def sample(params: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
        """A data set's 8-bit images, resized by the nearest pixel as published, and normalised."""
        classes = network.classes(params)
        if labels.max() >= classes:
            raise FormatError(
                f"The data has {labels.max() + 1} classes or more, and the head has {classes} outputs.",
                hint="Set --classes where the workload has it, or use its own data set.",
            )
        resized = resize_nearest(images, params["pixels"])
        return Batch(inputs=(_normalised(resized, normalisation(params)),), targets=labels)

    def head_flops(params: Params) -> list[float]:
        return [2.0 * inputs * outputs for inputs, outputs in network.widths(params)]

    def forward_flops(params: Params) -> float:
        return backbone.flops(params["pixels"]) + sum(head_flops(params))

    def training_factor(params: Params) -> float:
        total, dense = forward_flops(params), head_flops(params)
        if is_frozen(params):
            # No gradient goes below the head's first layer, which has that of its weights only.
            return (total + 2 * sum(dense) - dense[0]) / total
        # The first convolution's input is the image, which needs no gradient.
        first, side = next(iter(backbone.sized(int(params["pixels"]))))
        return (3 * total - first.flops(side)) / total

    return Workload(
        params=(
            Param("batch_size", batch_size, "samples per step", minimum=1),
            # Five halvings: below 32 nothing would be left of the image.
            Param("pixels", pixels, "side of the square image", minimum=32),
            Param(
                "train", "head", "head: the backbone is frozen; all: every weight is trained", choices=("head", "all")
            ),
            Param(
                "weights",
                weights.NONE,
                "of the backbone: none (random), imagenet (downloaded), or a .safetensors or .pth file",
                choices=(weights.NONE, weights.IMAGENET),
                path=True,
            ),
            *params,
        ),
        build=builders(__name__, network, families=families),
        batch=make_batch,
        datasets=datasets,
        sample=sample if datasets else None,
        flops=forward_flops,
        training_factor=training_factor,
        **options,
    )


def _normalised(images: np.ndarray, normalisation: Normalisation) -> np.ndarray:
    mean, deviation = (np.asarray(each, np.float32) for each in normalisation)
    return (images.astype(np.float32) / np.float32(255) - mean) / deviation
