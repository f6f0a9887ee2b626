"""The contract of a side: a network on a device that can be looked into. One file per framework keeps it."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from metalmark.backends.base import Placement, Probe
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import Layout
from metalmark.model.plan import Dtype, Plan
from metalmark.model.workload import Recipe, Workload

S = TypeVar("S")

Named = dict[str, np.ndarray]
"""Arrays by the names of parameters and running statistics, in their order in the network. Their layout is PyTorch's
in every framework: (outputs, inputs) of a dense layer, (outputs, inputs, height, width) of a convolution."""
See = Callable[[str, np.ndarray], None]
"""see(name of a layer, its output): called while the network runs, so that no two outputs need be held at once."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """An array that a network holds."""

    name: str
    shape: tuple[int, ...]
    """In the common layout."""
    statistic: bool = False
    """A running mean or variance, which no optimiser changes."""
    trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What a dropout layer did in a training step."""

    name: str
    rate: float
    """What it was asked to drop."""
    share: float
    """What it dropped."""
    scale: float
    """By what it multiplied the rest; NaN where nothing was left."""
    elements: int


class Subject(Protocol):
    """A network on a device. It begins with dropout switched off."""

    placement: Placement
    notes: tuple[str, ...]
    recipe: Recipe
    layout: Layout

    def slots(self) -> tuple[Slot, ...]:
        """What the network holds: parameters in their order, then running statistics."""

    def values(self) -> Named:
        """The arrays of the slots now."""

    def load(self, values: Named) -> None:
        """Take these arrays, and forget what the optimiser has learned: the next step is the first."""

    def follow(self, framework: str) -> None:
        """Keep the conventions of another framework's optimiser from now on, as far as this one can."""

    def set_dropout(self, on: bool) -> None: ...

    def seed(self, seed: int) -> None:
        """Seed the framework's random numbers."""

    def layers(self, arrays: Arrays, *, training: bool, see: See) -> None:
        """Run the network forward layer by layer, neither compiled nor captured. May change running statistics."""

    def dropped(self, arrays: Arrays) -> list[Dropped]:
        """Run the network forward in training, dropout on, and look at each dropout layer."""

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        """Return the network's outputs in evaluation, computed as the settings say."""

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        """Return the loss and the gradient of each trainable parameter, computed as the settings say. No gradients:
        the recipe has a step of its own, which keeps them to itself. Leaves the network in any state."""

    def apply(self, gradients: Named) -> None:
        """Let the optimiser take one step with these gradients."""

    def train_batch(self, arrays: Arrays) -> Any:
        """Enqueue one step, as the settings say, and return its loss, perhaps not computed yet."""

    def read(self, losses: list[Any]) -> list[float]: ...

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        """Return the mean loss and the outputs in evaluation, as a trainer does."""

    def synchronize(self) -> None: ...


class ParityBackend(Protocol):
    """A framework that can be looked into: the object SIDE of `parity/{torch,tensorflow,jax,mlx,fake}.py`."""

    name: str

    def probe(self) -> Probe: ...

    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> AbstractContextManager[Subject]:
        """Open a subject. `double`: everything in float64, whatever the plan says; raises where that can't be."""

    def fewer_threads(self) -> AbstractContextManager[bool]:
        """Compute with half the threads for a while; False where that can't be changed once the framework runs."""

    def with_low_loss(self, workload: Workload, dtype: Dtype) -> Workload:
        """Return the workload with its loss computed in this dtype as well, where it is that or float32 depending on
        the device; else the workload as it is."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...


def leaves_with_names(layer: str, leaves: list[Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Name each array of a layer's output: by the layer alone where there is one."""
    for name, leaf in zip(names, leaves, strict=True):
        yield (layer if len(leaves) == 1 else f"{layer}{name}"), leaf


def what_dropped(name: str, rate: float, inputs: np.ndarray, outputs: np.ndarray) -> Dropped:
    """Tell what a dropout layer did from its input and its output."""
    before, after = inputs.reshape(-1), outputs.reshape(-1)
    # What was zero before was not dropped, or nobody can tell.
    kept = before != 0
    before, after = before[kept], after[kept]
    left = after != 0
    return Dropped(
        name=name,
        rate=rate,
        share=1 - float(np.mean(left)) if before.size else math.nan,
        scale=float(np.median(after[left] / before[left])) if left.any() else math.nan,
        elements=int(before.size),
    )


class SameLoss:
    """A `with_low_loss` for frameworks that compute the loss in the same dtype on all devices."""

    def with_low_loss(self, workload: Workload, dtype: Dtype) -> Workload:
        del dtype
        return workload


@contextmanager
def threads_stay() -> Iterator[bool]:
    """A `fewer_threads` for frameworks whose threads are fixed once they run."""
    yield False


def opened(training: Any, session: Callable[..., S], plan: Plan, workload: Workload) -> AbstractContextManager[S]:
    """Open what a framework's trainer opens, as another kind of session."""
    training.session = session
    found: AbstractContextManager[S] = training.open(plan, workload)
    return found
