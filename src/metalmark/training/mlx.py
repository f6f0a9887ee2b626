"""MLX's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from typing import Any

import numpy as np
from mlx import core as mx
from mlx.utils import tree_flatten

from metalmark.backends.mlx import HALF, MlxBackend, MlxSession, cast
from metalmark.errors import FormatError
from metalmark.feeds.source import Arrays
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, with_prefix


class MlxTrainer(MlxSession):
    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        self._half = HALF.get(plan.settings.dtype)

    def train_batch(self, arrays: Arrays) -> Any:
        loss = self._work(*self.feeder.place(arrays))
        # Nothing has run until here: without this, steps would pile up as one ever longer graph.
        mx.eval(loss, self._state)
        return loss

    def read(self, losses: list[Any]) -> list[float]:
        return [float(loss.item()) for loss in losses]

    def evaluate(self, arrays: Arrays) -> tuple[float, np.ndarray]:
        inputs, targets = self.feeder.place(arrays)
        model = self._model
        masters = model.trainable_parameters()
        model.train(False)
        model.update(cast(masters, self._half))
        try:
            outputs = model(*cast(inputs, self._half)).astype(mx.float32)
            loss = self.recipe.loss(outputs, targets)
            mx.eval(loss, outputs)
        finally:
            model.update(masters)
            model.train(True)
        return float(loss.item()), np.array(outputs)

    def learning_rate(self) -> float:
        return float(self._optimizer.learning_rate.item())

    def state(self) -> State:
        state = {f"model.{name}": _array(array) for name, array in tree_flatten(self._model.parameters())}
        state |= {f"optimizer.{name}": _array(array) for name, array in tree_flatten(self._optimizer.state)}
        state["random.key"] = _array(_key())
        return state

    def load_state(self, state: State) -> None:
        own = dict(tree_flatten(self._model.parameters()))
        model = with_prefix("model.", state)
        if set(own) != set(model):
            raise FormatError(f"The checkpoint is of another network: {sorted(set(own) ^ set(model))[0]}.")
        # Frozen weights are kept in half precision where that is asked for, and were saved as float32.
        self._model.load_weights([(name, mx.array(model[name]).astype(array.dtype)) for name, array in own.items()])
        _fill(self._optimizer.state, with_prefix("optimizer.", state))
        # A key is a seed's two halves, and MLX lets nobody write to the key itself.
        high, low = (int(half) for half in state["random.key"])
        mx.random.seed(high << 32 | low)
        mx.eval(self._state)


class MlxTraining(MlxBackend):
    session = MlxTrainer


def _key() -> Any:
    state: Any = mx.random.state
    (key,) = state
    return key


def _array(array: Any) -> np.ndarray:
    # NumPy has no bfloat16; float32 holds each of its values.
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


def _fill(tree: Any, arrays: State, path: str = "") -> None:
    """In place, since a compiled step holds this tree and no other."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        name = f"{path}{key}"
        if isinstance(value, (dict, list)):
            _fill(value, arrays, f"{name}.")
        else:
            tree[key] = mx.array(arrays[name]).astype(value.dtype)


TRAINING = MlxTraining()
