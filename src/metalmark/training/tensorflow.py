"""TensorFlow's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from metalmark.backends.keras_common import call_arguments, loss_of
from metalmark.backends.outputs import scores, validated
from metalmark.backends.tensorflow import TensorflowBackend, TensorflowSession
from metalmark.feeds.leaves import Arrays
from metalmark.feeds.share import share_here
from metalmark.model.nest import Layout, flatten
from metalmark.model.plan import DeviceKind, Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, arrays_of, keras_names

TOGETHER = 64


class TensorflowTrainer(TensorflowSession):
    shares_loss = True

    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        recipe, rebuild = self.recipe, self.layout.rebuild
        self._share = share_here(plan)
        loss_function = loss_of(recipe, plan.processes)
        self._outputs_layout: Layout | None = None

        def judge(batch: Any) -> tuple[Any, Any]:
            outputs = scores(recipe.model(call_arguments(batch["inputs"]), training=False))
            return loss_function(batch["targets"], outputs, recipe.model.losses), outputs

        def evaluate(*leaves: Any) -> Any:
            loss, outputs = validated(recipe, rebuild(leaves), judge)
            found, self._outputs_layout = flatten(outputs)
            return loss, [tf.cast(output, tf.float32) for output in found]

        self._evaluate = tf.function(evaluate, jit_compile=plan.settings.compile)

    def train_batch(self, arrays: Arrays) -> Any:
        if self._share is not None:
            arrays, self._weight = self._share.part(arrays)
        self._output = self._work(*self._placed(arrays))
        return self._output[0]

    def read(self, losses: list[Any]) -> list[float]:
        # So many at a time, always: for each new number of them TensorFlow prepares an operation, which takes 20 ms.
        filled = losses + [losses[-1]] * (-len(losses) % TOGETHER)
        parts = [tf.stack(filled[place : place + TOGETHER]) for place in range(0, len(filled), TOGETHER)]
        return [float(value) for part in parts for value in part.numpy()][: len(losses)]

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        loss, outputs = self._evaluate(*self._placed(arrays))
        assert self._outputs_layout is not None
        return float(loss.numpy()), self._outputs_layout.rebuild(output.numpy() for output in outputs)

    def learning_rate(self) -> float:
        if not self._optimizers:
            return 0.0
        rate = self._optimizers[0].learning_rate
        return float(getattr(rate, "value", rate).numpy())

    def state(self) -> State:
        variables, names = self._variables()
        return dict(zip(names, (np.array(variable.value.numpy()) for variable in variables), strict=True))

    def load_state(self, state: State) -> None:
        variables, names = self._variables()
        for variable, array in zip(variables, arrays_of(state, names), strict=True):
            variable.assign(array)

    def _variables(self) -> tuple[list[Any], list[str]]:
        """Return everything that a checkpoint holds. The generators of dropout are among a model's variables: their
        state is saved with it. Optimisers of a user's own step have no variables before their first."""
        models = [variable for model in self._models for variable in model.variables]
        optimizers = [variable for optimizer in self._optimizers for variable in optimizer.variables]
        return [*models, *optimizers], [*keras_names("model.", models), *keras_names("optimizer.", optimizers)]

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
