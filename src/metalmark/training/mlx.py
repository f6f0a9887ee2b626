"""MLX's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from typing import Any

import numpy as np
from mlx import core as mx
from mlx.utils import tree_flatten

from metalmark.backends.mlx import HALF, MlxBackend, MlxSession, as_float32, cast
from metalmark.backends.mlx_world import mean_loss
from metalmark.backends.outputs import call, given_loss, scores, validated
from metalmark.errors import FormatError
from metalmark.feeds.leaves import Arrays
from metalmark.feeds.share import share_here
from metalmark.model.nest import flatten, map_leaves
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, optimizer_prefix, with_prefix


class MlxTrainer(MlxSession):
    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        self._half, self._share = HALF.get(plan.settings.dtype), share_here(plan)

    def train_batch(self, arrays: Arrays) -> Any:
        if self._share is not None:
            arrays, self._weight = self._share.part(arrays)
        (loss,) = self._work(self.feeder.place(arrays))
        if self._share is not None:
            loss = mean_loss(loss, self._weight)
        # Nothing has run until here: without this, steps would pile up as one ever longer graph.
        mx.eval(loss, self._state)
        return loss

    def read(self, losses: list[Any]) -> list[float]:
        return [float(loss.item()) for loss in losses]

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        leaves, rebuild = self.feeder.place(arrays), self.layout.rebuild
        masters = [model.trainable_parameters() for model in self._models]
        for model, mine in zip(self._models, masters, strict=True):
            model.train(False)
            model.update(cast(mine, self._half))

        def judge(batch: Any) -> tuple[Any, Any]:
            outputs = as_float32(call(self.recipe.model, rebuild(cast(leaves, self._half))["inputs"]))
            return given_loss(self.recipe, outputs, batch["targets"]), scores(outputs)

        try:
            loss, outputs = validated(self.recipe, rebuild(leaves), judge)
            mx.eval(loss, flatten(outputs)[0])
        finally:
            for model, mine in zip(self._models, masters, strict=True):
                model.update(mine)
                model.train(True)
        return float(loss.item()), map_leaves(np.array, outputs)

    def learning_rate(self) -> float:
        return float(self._optimizers[0].learning_rate.item()) if self._optimizers else 0.0

    def state(self) -> State:
        state = {f"model.{name}": as_numpy_array(array) for name, array in self._parameters().items()}
        for number, optimizer in enumerate(self._optimizers):
            state |= {
                f"{optimizer_prefix(number)}{name}": as_numpy_array(array)
                for name, array in tree_flatten(optimizer.state)
            }
        state["random.key"] = as_numpy_array(_key())
        return state

    def load_state(self, state: State) -> None:
        own = self._parameters()
        kept = with_prefix("model.", state)
        if set(own) != set(kept):
            raise FormatError(f"The checkpoint is of another network: {sorted(set(own) ^ set(kept))[0]}.")
        for number, model in enumerate(self._models):
            prefix = f"{number}." if len(self._models) > 1 else ""
            names = [name for name, _ in tree_flatten(model.parameters())]
            # Frozen weights are kept in half precision where that is asked for, and were saved as float32.
            arrays = [mx.array(kept[f"{prefix}{name}"]).astype(own[f"{prefix}{name}"].dtype) for name in names]
            model.load_weights(list(zip(names, arrays, strict=True)))
        for number, optimizer in enumerate(self._optimizers):
            _fill(optimizer.state, with_prefix(optimizer_prefix(number), state))
        # A key is a seed's two halves, and MLX lets nobody write to the key itself.
        high, low = (int(half) for half in state["random.key"])
        mx.random.seed(high << 32 | low)
        mx.eval(self._state)

    def _parameters(self) -> dict[str, Any]:
        """Return all arrays of all models, by names that a number goes before where there are several."""
        several = len(self._models) > 1
        return {
            f"{number}.{name}" if several else name: array
            for number, model in enumerate(self._models)
            for name, array in tree_flatten(model.parameters())
        }


class MlxTraining(MlxBackend):
    session = MlxTrainer


def _key() -> Any:
    state: Any = mx.random.state
    (key,) = state
    return key


def as_numpy_array(array: Any) -> np.ndarray:
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
