"""TensorFlow's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from metalmark.backends.keras_common import call_arguments, total_loss
from metalmark.backends.tensorflow import TensorflowBackend, TensorflowSession
from metalmark.feeds.source import Arrays
from metalmark.model.plan import DeviceKind, Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, arrays_of, keras_names

TOGETHER = 64


class TensorflowTrainer(TensorflowSession):
    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        model, recipe = self._model, self.recipe
        self._home = self._trainable[0].value.device

        def evaluate(*arrays: Any) -> Any:
            *inputs, targets = arrays
            outputs = model(call_arguments(inputs), training=False)
            return total_loss(recipe, targets, outputs, model.losses), tf.cast(outputs, tf.float32)

        self._evaluate = tf.function(evaluate, jit_compile=plan.settings.compile)
        # The generators of dropout are among the model's variables: their state is saved with it.
        self._variables = [*model.variables, *self._optimizer.variables]
        self._names = [*keras_names("model.", model.variables), *keras_names("optimizer.", self._optimizer.variables)]

    def train_batch(self, arrays: Arrays) -> Any:
        self._output = self._work(*self._placed(arrays))
        return self._output

    def read(self, losses: list[Any]) -> list[float]:
        # So many at a time, always: for each new number of them TensorFlow prepares an operation, which takes 20 ms.
        filled = losses + [losses[-1]] * (-len(losses) % TOGETHER)
        parts = [tf.stack(filled[place : place + TOGETHER]) for place in range(0, len(filled), TOGETHER)]
        return [float(value) for part in parts for value in part.numpy()][: len(losses)]

    def evaluate(self, arrays: Arrays) -> tuple[float, np.ndarray]:
        loss, outputs = self._evaluate(*self._placed(arrays))
        return float(loss.numpy()), outputs.numpy()

    def learning_rate(self) -> float:
        return float(self._optimizer.learning_rate)

    def state(self) -> State:
        values = (np.array(variable.value.numpy()) for variable in self._variables)
        return dict(zip(self._names, values, strict=True))

    def load_state(self, state: State) -> None:
        for variable, array in zip(self._variables, arrays_of(state, self._names), strict=True):
            variable.assign(array)

    def _placed(self, arrays: Arrays) -> list[Any]:
        # Of a fresh array a constant is made in one go; the identity that resident batches want copies it once more,
        # which is a twentieth of a small step.
        with tf.device(self._home):
            return [tf.constant(array) for array in arrays]


class TensorflowTraining(TensorflowBackend):
    session = TensorflowTrainer

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[TensorflowSession]:
        on_cpu = plan.device.kind is DeviceKind.CPU or not tf.config.list_physical_devices("GPU")
        if on_cpu:
            # Its threads otherwise sum in the order they finish in, and no two runs are alike.
            tf.config.experimental.enable_op_determinism()
        with super().open(plan, workload) as session:
            yield session


TRAINING = TensorflowTraining()
