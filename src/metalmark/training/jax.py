"""JAX's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from metalmark.backends.jax import JaxBackend, JaxSession
from metalmark.backends.keras_common import call_arguments, total_loss
from metalmark.feeds.source import Arrays
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, arrays_of, keras_names


class JaxTrainer(JaxSession):
    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        super().__init__(plan, workload, device)
        model, recipe = self.recipe.model, self.recipe
        self._home = device

        def evaluate(trainable: Any, others: Any, inputs: Any, targets: Any) -> Any:
            outputs, _, penalties = model.stateless_call(
                trainable, others, call_arguments(inputs), training=False, return_losses=True
            )
            return total_loss(recipe, targets, outputs, penalties), outputs.astype(jnp.float32)

        self._evaluate = jax.jit(evaluate)
        # In the order of the session's state. The generators of dropout are among the variables that do not train.
        self._names = (
            keras_names("model.", model.trainable_variables),
            keras_names("model.", model.non_trainable_variables),
            keras_names("optimizer.", self._optimizer.variables),
        )

    def train_batch(self, arrays: Arrays) -> Any:
        self._state, self._output = self._work(self._state, self._fixed, *self.feeder.place(arrays))
        return self._output

    def read(self, losses: list[Any]) -> list[float]:
        return [float(value) for value in jax.device_get(losses)]

    def evaluate(self, arrays: Arrays) -> tuple[float, np.ndarray]:
        trainable, others, _ = self._state
        loss, outputs = self._evaluate(trainable, others, *self.feeder.place(arrays))
        return float(loss), np.asarray(outputs)

    def learning_rate(self) -> float:
        slots = zip(self._optimizer.variables, self._state[2], strict=True)
        with keras.StatelessScope(state_mapping=list(slots)):
            return float(self._optimizer.learning_rate)

    def state(self) -> State:
        names = [name for group in self._names for name in group]
        values = [np.array(array) for group in self._state for array in group]
        return dict(zip(names, values, strict=True))

    def load_state(self, state: State) -> None:
        groups = tuple([jnp.asarray(array) for array in arrays_of(state, group)] for group in self._names)
        self._state = jax.device_put(groups, self._home)


class JaxTraining(JaxBackend):
    session = JaxTrainer


TRAINING = JaxTraining()
