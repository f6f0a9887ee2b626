"""WHAT is trained: a Workload names its parameters and, per framework family, a function that builds a Recipe.

No framework is imported here. Built-ins name their builders as "module:function", so that listing them
costs nothing; a user's own file may pass the functions themselves.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from metalmark.errors import UnsupportedError
from metalmark.model.plan import Feed, Mode, Scalar

if TYPE_CHECKING:
    import numpy as np

Params = Mapping[str, Any]

FAMILIES: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "keras": ("tensorflow", "jax"),
    "mlx": ("mlx",),
    "fake": ("fake",),
}
"""Which frameworks one builder serves."""


class Param(Struct, frozen=True):
    """A parameter of a workload, offered as a flag: `batch_size` is `--batch-size`."""

    name: str
    default: Scalar
    help: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    path: bool = False
    """Besides its choices it takes a file or folder of the user's."""


class WorkloadInfo(Struct, frozen=True, kw_only=True, tag="workload"):
    """What the command line has to know of a workload; crosses a process when the file is a user's own."""

    name: str
    title: str
    params: tuple[Param, ...]
    modes: tuple[Mode, ...]
    frameworks: tuple[str, ...]
    feed: Feed = Feed.RESIDENT
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Arrays of one step, images as NHWC."""

    inputs: "tuple[np.ndarray, ...]"
    targets: "np.ndarray"


def _unchanged(batch: Batch) -> Batch:
    """Not a lambda, which can't be pickled: a loader's processes are spawned on macOS, and get a recipe's `prepare`."""
    return batch


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a builder returns, in its framework's own objects.

    torch: `loss(outputs, targets)`, and `optimizer(parameters)` makes the optimiser; it must pass keyword
           arguments on (`functools.partial(torch.optim.Adam, lr=1e-3)` does), so that `--fused` can reach it.
    keras: `loss(targets, outputs)` as Keras losses are, and `optimizer()` makes the optimiser.
    mlx:   `loss(outputs, targets)` returning a scalar, and `optimizer()` makes the optimiser.
    """

    model: Any
    loss: Callable[..., Any]
    optimizer: Callable[..., Any]
    prepare: Callable[[Batch], Batch] = _unchanged
    """Turns the workload's arrays into this framework's layout (NCHW, other integer types)."""


Builder = Callable[[Params], Recipe]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A thing to train. `batch(params, rng)` makes one batch; `flops(params)` is one sample's forward pass."""

    name: str
    title: str
    params: tuple[Param, ...]
    build: Mapping[str, Builder | str]
    batch: "Callable[[Params, np.random.Generator], Batch]"
    produce_s: Callable[[Params], float] | None = None
    """How long a loader's batch takes to make beyond its arrays, where the workload sets that cost."""
    flops: Callable[[Params], float] | None = None
    training_factor: float | Callable[[Params], float] = 3.0
    """A training step's work as a multiple of the forward pass: one more for each of the two gradients. A
    function of the parameters where they decide what is trained: a frozen part has no gradients."""
    modes: tuple[Mode, ...] = (Mode.TRAINING, Mode.INFERENCE)
    datasets: tuple[str, ...] = ()
    """Data sets of `metalmark.data` it can be fed with, `--data real` meaning the first."""
    sample: "Callable[[Params, np.ndarray, np.ndarray], Batch] | None" = None
    """sample(params, images as uint8 NHWC, labels) makes a batch of real samples."""
    augment: "Callable[[Params, np.ndarray, np.random.Generator], np.ndarray] | None" = None
    """augment(params, images, rng) gives random views of a data set's training images."""
    feed: Feed = Feed.RESIDENT
    """Where its batches come from unless --data-from says otherwise."""
    notes: Callable[[Params], tuple[str, ...]] | None = None
    """What a reader of a record must know that its parameters do not say."""
    origin: str = field(init=False, default="")
    """The file of a user's own, so that a loader's worker process can find it again; empty for the catalogue's."""

    @cached_property
    def info(self) -> WorkloadInfo:
        given = {name: getattr(self, name) for name in ("name", "title", "params", "modes", "feed")}
        return WorkloadInfo(**given, frameworks=tuple(name for family in self.build for name in FAMILIES[family]))

    def produce(self, params: Params, rng: "np.random.Generator") -> Batch:
        """A batch as a loader makes it: at the cost the workload sets, which is waiting, not computing."""
        begin = time.perf_counter()
        batch = self.batch(params, rng)
        if self.produce_s is not None:
            time.sleep(max(0.0, begin + self.produce_s(params) - time.perf_counter()))
        return batch

    def recipe(self, family: str, params: Params) -> Recipe:
        builder = self.build.get(family)
        if builder is None:
            raise UnsupportedError(
                f"{self.name} has no {family} implementation.", hint=f"It has: {', '.join(self.build)}."
            )
        try:
            if isinstance(builder, str):
                module, _, name = builder.partition(":")
                builder = getattr(import_module(module), name)
            return builder(params)
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                f"{self.name} on {family} needs the package {error.name}, which is not installed.",
                hint=f"Install it: pip install {error.name}",
            ) from error
