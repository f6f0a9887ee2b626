"""JAX's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from metalmark.backends.jax import JaxBackend, JaxSession
from metalmark.backends.keras_common import call_arguments, loss_of
from metalmark.backends.outputs import NOTHING_TO_VALIDATE, scores, total, validated
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import Layout, flatten
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, arrays_of, keras_names

GIVE_VALIDATE_STATE = "Give Recipe(validate=function) beside `step`: validate(state, inputs, targets) returns a loss."


class JaxTrainer(JaxSession):
    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        super().__init__(plan, workload, device)
        recipe, rebuild = self.recipe, self.layout.rebuild
        self._home = device
        self._outputs_layout: Layout | None = None
        if recipe.step is not None:
            if recipe.validate is None:
                raise UnsupportedError(NOTHING_TO_VALIDATE, hint=GIVE_VALIDATE_STATE)
            validate = recipe.validate

            def evaluate(state: Any, leaves: Any) -> Any:
                batch = rebuild(leaves)
                self._outputs_layout = flatten(None)[1]
                return total(validate(state, batch["inputs"], batch["targets"])), []

            self._names: tuple[list[str], ...] = ([f"model.{name}" for name in self._names_of],)
        else:
            model, loss_function = recipe.model, loss_of(recipe)

            def evaluate(state: Any, leaves: Any) -> Any:
                def judge(batch: Any) -> tuple[Any, Any]:
                    outputs, _, penalties = model.stateless_call(
                        *state[:2], call_arguments(batch["inputs"]), training=False, return_losses=True
                    )
                    return loss_function(batch["targets"], scores(outputs), penalties), scores(outputs)

                loss, outputs = validated(recipe, rebuild(leaves), judge)
                found, self._outputs_layout = flatten(outputs)
                return loss, [output.astype(jnp.float32) for output in found]

            # In the order of the session's state. The generators of dropout are among the variables that do not train.
            self._names = (
                keras_names("model.", model.trainable_variables),
                keras_names("model.", model.non_trainable_variables),
                keras_names("optimizer.", self._optimizer.variables if self._training else []),
            )
        self._evaluate = jax.jit(evaluate)

    def train_batch(self, arrays: Arrays) -> Any:
        batch = self.feeder.place(arrays) if self._shared is None else self._shared.batch(arrays)
        self._state, self._output = self._work(self._state, self._fixed, batch)
        return self._output

    def read(self, losses: list[Any]) -> list[float]:
        return [float(value) for value in jax.device_get(losses)]

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        # One of several processes validates by itself.
        state = self._state if self._shared is None else self._shared.here(self._state)
        loss, outputs = self._evaluate(state, tuple(jax.device_put(tuple(arrays), self._home)))
        assert self._outputs_layout is not None
        return float(loss), self._outputs_layout.rebuild(map(np.asarray, outputs))

    def learning_rate(self) -> float:
        if self._optimizer is None:
            return 0.0
        values = self._state[2] if self._shared is None else self._shared.here(self._state[2])
        slots = zip(self._optimizer.variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(slots)):
            return float(self._optimizer.learning_rate)

    def state(self) -> State:
        names = [name for group in self._names for name in group]
        return dict(zip(names, map(np.array, jax.tree.leaves(self._state)), strict=True))

    def load_state(self, state: State) -> None:
        names = [name for group in self._names for name in group]
        leaves = [jnp.asarray(array) for array in arrays_of(state, names)]
        whole = jax.tree.unflatten(jax.tree.structure(self._state), leaves)
        self._state = jax.device_put(whole, self._home) if self._shared is None else self._shared.state(whole)


class JaxTraining(JaxBackend):
    session = JaxTrainer


TRAINING = JaxTraining()
