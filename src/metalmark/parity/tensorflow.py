"""TensorFlow's side of a check: the trainer that `train` uses, its steps traced with dropout and without."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from metalmark.backends.keras_common import call_arguments
from metalmark.backends.outputs import scores
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import Layout, flatten
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.parity.base import Named, ParityBackend, SameLoss, leaves_with_names, opened, threads_stay
from metalmark.parity.keras_common import (
    KerasSubject,
    as_double,
    as_float,
    compact,
    compute_in_double,
    is_float,
    keras_restored,
    replaced,
    seed_generators,
)
from metalmark.training.tensorflow import TensorflowTrainer, TensorflowTraining


class TensorflowSubject(KerasSubject, TensorflowTrainer):
    def __init__(self, plan: Plan, workload: Workload) -> None:
        super().__init__(plan, workload)
        self._compile = plan.settings.compile
        self._plain: Callable[..., Any] = self._work.python_function
        if self.double:
            compute_in_double(self._models)
        self._look_at(self._models)
        held = {id(holding.variable) for holding in self._holdings}
        begun = [variable for variable in self._variables()[0] if id(variable) not in held]
        self._first = {id(variable): compact(variable.value.numpy()) for variable in begun}
        self._gradient_steps: dict[bool, Any] = {}
        self._optimizer_step: Any = None
        self._predictor: Any = None
        self._with_gradient: list[Any] = []
        self._predicted: Layout | None = None

    def load(self, values: Named) -> None:
        arrays = {**self._first, **self._given_arrays(values)}
        for variable in self._variables()[0]:
            # Optimisers of a user's own step make most of their variables in the first one, as zeros.
            array = arrays.get(id(variable), np.zeros(variable.shape))
            variable.assign(array.astype(variable.dtype))

    def seed(self, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        for number, generator in enumerate(seed_generators(self._models)):
            generator.state.assign(np.array([seed + number, 0], generator.state.dtype))

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        model = self.recipe.model
        if not isinstance(model, keras.Model):
            return []  # only the user's own step knows how several models are called
        if not self._training:
            leaves = self._work(*self._placed(arrays))
            names = tuple(f"[{number}]" for number in range(len(leaves)))
        else:
            if self._predictor is None:

                def infer(*leaves: Any) -> Any:
                    inputs = call_arguments(self.layout.rebuild(leaves)["inputs"])
                    found, self._predicted = flatten(scores(model(inputs, training=False)))
                    return found

                self._predictor = tf.function(infer, jit_compile=self._compile)
            leaves = self._predictor(*self._placed(arrays))
            assert self._predicted is not None
            names = self._predicted.names
        return [(name, as_float(leaf)) for name, leaf in leaves_with_names("", leaves, names) if is_float(leaf)]

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        if self.recipe.step is not None:
            (loss,) = self.read([self.train_batch(arrays)])
            return loss, {}
        if self._dropping not in self._gradient_steps:
            self._gradient_steps[self._dropping] = tf.function(self._record_gradients, jit_compile=self._compile)
        scale = self._loss_scale()
        loss, gradients = self._gradient_steps[self._dropping](*self._placed(arrays))
        return float(loss.numpy()), self._common_gradients(self._with_gradient, gradients, scale)

    def apply(self, gradients: Named) -> None:
        (optimizer,) = self._optimizers
        if self._optimizer_step is None:

            def take_step(*gradients: Any) -> None:
                optimizer.apply(list(gradients), self._trainable)

            self._optimizer_step = tf.function(take_step, jit_compile=self._compile)
        own = self._own_gradients(gradients, self._trainable, self._loss_scale())
        with tf.device(self._home):
            self._optimizer_step(*map(tf.constant, own))

    def _record_gradients(self, *leaves: Any) -> Any:
        """The session's own step, in which the optimiser only takes notice."""
        (optimizer,) = self._optimizers
        found: list[Any] = []

        def take_notice(gradients: Any, variables: Any) -> None:
            pairs = [each for each in zip(gradients, variables, strict=True) if each[0] is not None]
            # Those of embeddings are given as the rows that were used.
            found.extend(tf.convert_to_tensor(gradient) for gradient, _ in pairs)
            self._with_gradient = [variable for _, variable in pairs]

        with replaced(optimizer, "apply", take_notice):
            (loss,) = self._plain(*leaves)
        return loss, found

    def _loss_scale(self) -> float:
        scale = getattr(self._optimizers[0], "dynamic_scale", None)
        return 1.0 if scale is None else float(scale.value.numpy())

    def _current(self) -> dict[int, Any]:
        return {id(variable): variable.value for model in self._models for variable in model.variables}

    def _forward(self, arrays: Arrays, *, training: bool) -> None:
        if isinstance(self.recipe.model, keras.Model):
            inputs = self.layout.rebuild(self._placed(arrays))["inputs"]
            self.recipe.model(call_arguments(inputs), training=training)

    def _untraced(self) -> Any:
        return tf.function(self._plain, jit_compile=self._compile)

    def _is_computed(self, array: Any) -> bool:
        return tf.is_tensor(array) and hasattr(array, "numpy")

    def _placed(self, arrays: Arrays) -> list[Any]:
        return super()._placed(as_double(arrays) if self.double else arrays)


class DoubleTensorflowSubject(TensorflowSubject):
    double = True


class TensorflowSide(SameLoss, TensorflowTraining):
    @contextmanager
    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> Iterator[TensorflowSubject]:
        kind = DoubleTensorflowSubject if double else TensorflowSubject
        with keras_restored(), opened(TensorflowTraining(), kind, plan, workload) as subject:
            yield subject

    def fewer_threads(self) -> AbstractContextManager[bool]:
        return threads_stay()


SIDE: ParityBackend = TensorflowSide()
