"""WHAT is trained: a Workload names its parameters and, per framework family, a function that builds a Recipe.

No framework is imported here. Built-ins name their builders as "module:function", so that listing them
costs nothing; a user's own file may pass the functions themselves.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
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
    whole: bool = False
    """Its text is one value, commas and all: a shape."""


class WorkloadInfo(Struct, frozen=True, kw_only=True, tag="workload"):
    """What the command line has to know of a workload; crosses a process when the file is a user's own."""

    name: str
    title: str
    params: tuple[Param, ...]
    modes: tuple[Mode, ...]
    frameworks: tuple[str, ...]
    feed: Feed = Feed.RESIDENT
    data: str = "synthetic"
    """Where its samples come from unless --data says otherwise: "own" where it brings them."""
    digest: str = ""


class Task(StrEnum):
    """What a network learns, which decides what is counted beside its loss."""

    CLASSIFICATION = "classification"
    MULTILABEL = "multilabel"
    REGRESSION = "regression"
    LANGUAGE = "language"
    SEGMENTATION = "segmentation"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Arrays of one step, images as NHWC: each an array, or any nest of them (tuple, dict, dataclass).

    A dict of inputs is given to a PyTorch or MLX model by name, a tuple by position; Keras gets a nest as it is.
    """

    inputs: Any
    targets: Any = None
    """None where the model computes its loss from its inputs."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A user's own samples: arrays, a Dataset or loader of a framework, or any iterable of batches, for each part."""

    train: Any
    validation: Any = None
    """None: a fifth of `train` is kept for it, where that can be split."""


def _unchanged(batch: Batch) -> Batch:
    """Not a lambda, which can't be pickled: a loader's processes are spawned on macOS, and get a recipe's `prepare`."""
    return batch


def _no_batch(_: Params, __: Any) -> Batch:
    raise UnsupportedError(
        "This workload has no `batch`, so there is no synthetic data for it.",
        hint="Use its own data (--data own) or files (--data PATH), or give Workload(batch=...).",
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a builder returns, in its framework's own objects.

    torch: `loss(outputs, targets)`; the optimiser as an object, a class, or a function of the parameters. A function
           must pass keyword arguments on (`functools.partial(torch.optim.Adam, lr=1e-3)` does), so that `--fused` can
           reach it.
    keras: `loss(targets, outputs)` as Keras losses are, or its name ("mse"); the optimiser as an object, a class, a
           function or a name ("adam"). A compiled model needs neither.
    mlx:   `loss(outputs, targets)` returning a scalar; the optimiser as an object, a class or a function.
    """

    model: Any
    loss: Any = None
    """None: the model returns its loss, alone, as `.loss` or `["loss"]`, or as the one number of a tuple."""
    optimizer: Any = None
    """Of a step of the user's own: all optimisers, in a list or dict, so that checkpoints hold their state."""
    schedule: Callable[[Any], Any] | None = None
    """PyTorch: schedule(optimizer) makes a learning-rate schedule, which goes on after each step."""
    step: Callable[..., Any] | None = None
    """step(inputs, targets) does one whole step and returns its loss, or a dict of losses."""
    validate: Callable[..., Any] | None = None
    """validate(inputs, targets) returns the loss of validation, or a dict of losses, where `loss` can't: for a step of
    the user's own."""
    metrics: Mapping[str, Callable[[Any, Any], float]] = field(default_factory=dict)
    """Of validation: metric(outputs, targets) of one batch, on NumPy arrays; the mean over all samples is kept."""
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
    batch: "Callable[[Params, np.random.Generator], Batch]" = _no_batch
    """Makes a synthetic batch; a workload with `data` needs none."""
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
    data: Callable[[Params], Any] | None = None
    """data(params) returns the user's own samples: Data, or what its `train` may be."""
    task: Task | None = None
    """None: told from the shapes of outputs and targets."""
    tokens: Callable[[Params], int] | None = None
    """How many tokens one sample has, where they are what is counted."""
    feed: Feed = Feed.RESIDENT
    """Where its batches come from unless --data-from says otherwise."""
    notes: Callable[[Params], tuple[str, ...]] | None = None
    """What a reader of a record must know that its parameters do not say."""
    origin: str = field(init=False, default="")
    """The file of a user's own, so that a loader's worker process can find it again; empty for the catalogue's."""

    @cached_property
    def info(self) -> WorkloadInfo:
        given = {name: getattr(self, name) for name in ("name", "title", "params", "modes", "feed")}
        data = "synthetic" if self.data is None else "own"
        frameworks = tuple(name for family in self.build for name in FAMILIES[family])
        return WorkloadInfo(**given, data=data, frameworks=frameworks)

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
