"""A backbone as data: its convolutions under torchvision's names. Counts, work, weights and every framework's
modules come from here, so that they can't disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from metalmark.workloads import weights

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]

EPSILON, MOMENTUM = 1e-5, 0.1
"""Of every BatchNorm, as torchvision has them; the momentum is the share of the new batch."""
RANDOM_SEED = 0


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
        """The side of its output, given its input's."""
        return -(-side // self.stride)

    def flops(self, side: int) -> float:
        """The work on an input of this side: 2 for a multiplication and its addition."""
        return 2.0 * self.side(side) ** 2 * self.outputs * self.fan_in

    def shapes(self) -> Shapes:
        found: Shapes = {f"{self.name}.weight": (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)}
        each = (self.outputs,)
        if not self.norm:
            return found | {f"{self.name}.bias": each}
        return found | {f"{self.norm}.{part}": each for part in ("weight", "bias", "running_mean", "running_var")}

    def start(self, rng: np.random.Generator) -> Arrays:
        """He's initialisation by what really flows in: the signal keeps its size through frozen, untrained layers.

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
class Backbone:
    """A network without its top. `sized(pixels)` gives each convolution and the side of its input."""

    name: str
    channels: int
    """Of its output."""
    sized: Callable[[int], Iterable[tuple[Conv, int]]]
    rename: Callable[[str], str] = str
    """Another library's name of an array as torchvision's; names it does not know stay."""

    def convolutions(self) -> list[Conv]:
        return [conv for conv, _ in self.sized(224)]

    def shapes(self) -> Shapes:
        return {name: shape for conv in self.convolutions() for name, shape in conv.shapes().items()}

    def flops(self, pixels: int) -> float:
        return sum(conv.flops(side) for conv, side in self.sized(pixels))

    def first_flops(self, pixels: int) -> float:
        """Of the first convolution, whose input is the image: it needs no gradient."""
        conv, side = next(iter(self.sized(pixels)))
        return conv.flops(side)

    def arrays(self, word: str) -> Arrays:
        """Every array of it: the same random ones in every framework, or those that `--weights` names."""
        path = weights.find(word, self.name)
        if path is not None:
            return weights.load(path, self.shapes(), self.rename)
        rng = np.random.default_rng(RANDOM_SEED)
        return {name: array for conv in self.convolutions() for name, array in conv.start(rng).items()}
