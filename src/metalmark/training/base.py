"""The contract every framework's trainer keeps; tests/training runs them all through it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from metalmark.backends.base import Placement, Probe
from metalmark.feeds.source import Arrays
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

    def train_batch(self, arrays: Arrays) -> Any:
        """Enqueue one step; its loss, perhaps not computed yet. Reads nothing back."""

    def read(self, losses: list[Any]) -> list[float]:
        """Losses of `train_batch` as numbers. Waits for them."""

    def evaluate(self, arrays: Arrays) -> tuple[float, np.ndarray]:
        """The mean loss and the outputs, as float32, in inference mode. Changes nothing."""

    def learning_rate(self) -> float: ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...

    def synchronize(self) -> None: ...

    def memory(self) -> DeviceMemory: ...


class Training(Protocol):
    """A framework that trains: what `training/{torch,tensorflow,jax,mlx}.py` call TRAINING."""

    name: str

    def probe(self) -> Probe: ...

    def open(self, plan: Plan, workload: Workload) -> AbstractContextManager[Trainer]: ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...


def with_prefix(prefix: str, state: State) -> State:
    """The part of a state under a prefix, the prefix cut off."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
