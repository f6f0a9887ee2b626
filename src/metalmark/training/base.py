"""The contract every framework's trainer keeps; tests/training runs them all through it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from metalmark.backends.base import Placement, Probe
from metalmark.errors import FormatError
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import Layout
from metalmark.model.plan import Plan
from metalmark.model.run import DeviceMemory
from metalmark.model.workload import Recipe, Workload

State = dict[str, np.ndarray]
"""Everything that decides the next step, by names that begin with `model.`, `optimizer.` or `random.`"""


class Trainer(Protocol):
    """A model on a device that takes one batch at a time, of any size."""

    placement: Placement
    parameters: int
    trainable_parameters: int
    notes: tuple[str, ...]
    recipe: Recipe
    layout: Layout
    """Puts the leaves of a batch together as {"inputs": ..., "targets": ...}."""

    def train_batch(self, arrays: Arrays) -> Any:
        """Enqueue one step and return its loss, perhaps not computed yet. Reads nothing back."""

    def read(self, losses: list[Any]) -> list[float]:
        """Wait for losses of `train_batch`, and return them as numbers."""

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        """Return the mean loss and the outputs, a nest of float32 arrays, in inference mode. Changes nothing. Outputs
        are None where only the recipe's `validate` knows them."""

    def learning_rate(self) -> float: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...

    def synchronize(self) -> None: ...

    def memory(self) -> DeviceMemory: ...


class Training(Protocol):
    """A framework that trains: the object TRAINING of `training/{torch,tensorflow,jax,mlx}.py`."""

    name: str

    def probe(self) -> Probe: ...

    def open(self, plan: Plan, workload: Workload) -> AbstractContextManager[Trainer]: ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...


def optimizer_prefix(number: int) -> str:
    """Where the state of an optimiser is kept: most trainings have only the first."""
    return f"optimizer.{number}." if number else "optimizer."


def with_prefix(prefix: str, state: State) -> State:
    """Return the part of a state whose names begin with a prefix, without the prefix."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def keras_names(prefix: str, variables: Sequence[Any]) -> list[str]:
    """Return a name for each Keras variable: its path in the model, and its number where a path comes again."""
    names: list[str] = []
    for number, variable in enumerate(variables):
        name = f"{prefix}{variable.path}"
        names.append(f"{name}#{number}" if name in names else name)
    return names


def arrays_of(state: State, names: Sequence[str]) -> list[Any]:
    """Return the arrays of these names, in their order."""
    missing = [name for name in names if name not in state]
    if missing:
        raise FormatError(f"The checkpoint has no {missing[0]}: it is of another network or of another Keras.")
    return [state[name] for name in names]
