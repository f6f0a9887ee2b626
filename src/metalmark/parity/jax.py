"""JAX's side of a check: the trainer that `train` uses, its steps traced with dropout and without."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from metalmark.backends.keras_common import call_arguments
from metalmark.backends.outputs import scores
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import Layout, flatten
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.parity.base import Named, ParityBackend, SameLoss, Slot, leaves_with_names, opened, threads_stay
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
from metalmark.training.jax import JaxTrainer, JaxTraining


class JaxSubject(KerasSubject, JaxTrainer):
    """All arrays are those of the session's state. The model's own variables are not read: each step may give their
    memory to the next state."""

    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        super().__init__(plan, workload, device)
        self._plain: Callable[..., Any] = self._work.__wrapped__
        self._model = self.recipe.model if self.recipe.step is None else None
        models = [] if self._model is None else [self._model]
        if self.double:
            compute_in_double(models)
            place = self.feeder.place
            self.feeder.place = lambda arrays: place(as_double(arrays))
        self._look_at(models)
        held = {id(holding.variable) for holding in self._holdings}
        self._first = {key: compact(np.asarray(a)) for key, a in self._everything().items() if key not in held}
        self._gradient_steps: dict[bool, Any] = {}
        self._optimizer_step: Any = None
        self._predictor: Any = None
        self._predicted: Layout | None = None

    def slots(self) -> tuple[Slot, ...]:
        if self._model is not None:
            return super().slots()
        leaves = zip(self._names_of, jax.tree.leaves(self._state), strict=True)
        return tuple(Slot(name=name, shape=tuple(np.shape(leaf))) for name, leaf in leaves)

    def values(self) -> Named:
        if self._model is not None:
            return super().values()
        leaves = zip(self._names_of, jax.tree.leaves(self._state), strict=True)
        return {name: np.array(leaf) for name, leaf in leaves}

    def load(self, values: Named) -> None:
        if self._model is None:
            structure = jax.tree.structure(self._state)
            arrays = [jnp.array(values[name]) for name in self._names_of]
            self._state = jax.device_put(jax.tree.unflatten(structure, arrays), self._home)
            return
        given = {**self._first, **self._given_arrays(values)}

        def placed(variables: Any) -> list[Any]:
            # Copies: a step overwrites the state that it is given.
            arrays = [jnp.array(given[id(variable)], dtype=variable.dtype) for variable in variables]
            return list(jax.device_put(arrays, self._home))

        trainable, others = placed(self._model.trainable_variables), placed(self._model.non_trainable_variables)
        if self._training:
            self._state = trainable, others, placed(self._optimizer.variables)
        else:
            self._state, self._fixed = (self._state[0], others), (trainable,)

    def seed(self, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        if self._model is None:
            return
        states = {id(generator.state): number for number, generator in enumerate(seed_generators([self._model]))}
        others = list(self._others())
        for place, variable in enumerate(self._model.non_trainable_variables):
            if id(variable) in states:
                fresh = np.array([seed + states[id(variable)], 0], variable.dtype)
                others[place] = jax.device_put(jnp.array(fresh), self._home)
        self._state = (self._state[0], others, *self._state[2:])

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        model = self._model
        if model is None:
            return []  # only the user's own step knows how its state is used
        placed = self.feeder.place(arrays)
        if not self._training:
            self._state, leaves = self._work(self._state, self._fixed, placed)
            names = tuple(f"[{number}]" for number in range(len(leaves)))
        else:
            if self._predictor is None:

                def infer(trainable: Any, others: Any, leaves: Any) -> Any:
                    inputs = call_arguments(self.layout.rebuild(leaves)["inputs"])
                    outputs, _ = model.stateless_call(trainable, others, inputs, training=False)
                    found, self._predicted = flatten(scores(outputs))
                    return found

                self._predictor = jax.jit(infer)
            leaves = self._predictor(self._trainable(), self._others(), placed)
            assert self._predicted is not None
            names = self._predicted.names
        return [(name, as_float(leaf)) for name, leaf in leaves_with_names("", leaves, names) if is_float(leaf)]

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        if self._model is None:
            (loss,) = self.read([self.train_batch(arrays)])
            return loss, {}
        if self._dropping not in self._gradient_steps:
            self._gradient_steps[self._dropping] = jax.jit(self._gradient_step(), donate_argnums=0)
        scale = self._loss_scale()
        step = self._gradient_steps[self._dropping]
        self._state, self._output, gradients = step(self._state, self._fixed, self.feeder.place(arrays))
        return float(self._output), self._common_gradients(self._model.trainable_variables, gradients, scale)

    def apply(self, gradients: Named) -> None:
        assert self._model is not None
        if self._optimizer_step is None:
            self._optimizer_step = jax.jit(self._optimizer.stateless_apply, donate_argnums=(0, 2))
        own = self._own_gradients(gradients, self._model.trainable_variables, self._loss_scale())
        trainable, others, slots = self._state
        trainable, slots = self._optimizer_step(slots, jax.device_put(own, self._home), trainable)
        self._state = trainable, others, slots

    def _gradient_step(self) -> Callable[..., Any]:
        """Return the session's own step, in which the optimiser only takes notice."""

        def step(state: Any, fixed: Any, leaves: Any) -> Any:
            found: list[Any] = []

            def take_notice(slots: Any, gradients: Any, trainable: Any) -> Any:
                found.extend(gradients)
                return trainable, slots

            with replaced(self._optimizer, "stateless_apply", take_notice):
                state, loss = self._plain(state, fixed, leaves)
            return state, loss, found

        return step

    def _loss_scale(self) -> float:
        scale = getattr(self._optimizer, "dynamic_scale", None)
        return 1.0 if scale is None else float(self._everything()[id(scale)])

    def _others(self) -> list[Any]:
        return self._state[1]  # type: ignore[no-any-return]

    def _current(self) -> dict[int, Any]:
        if self._model is None:
            return {}
        variables = [*self._model.trainable_variables, *self._model.non_trainable_variables]
        arrays = [*self._trainable(), *self._others()]
        return {id(variable): array for variable, array in zip(variables, arrays, strict=True)}

    def _everything(self) -> dict[int, Any]:
        """Return the arrays of the model's and the optimiser's variables."""
        if self._optimizer is None:
            return self._current()
        slots = {id(v): array for v, array in zip(self._optimizer.variables, self._state[2], strict=True)}
        return {**self._current(), **slots}

    def _forward(self, arrays: Arrays, *, training: bool) -> None:
        if self._model is not None:
            inputs = call_arguments(self.layout.rebuild(self.feeder.place(arrays))["inputs"])
            self._model.stateless_call(self._trainable(), self._others(), inputs, training=training)

    def _untraced(self) -> Any:
        def work(state: Any, fixed: Any, leaves: Any) -> Any:
            return self._plain(state, fixed, leaves)

        # JAX keeps what it traced by the function, so the same function would not be traced again.
        return jax.jit(work, donate_argnums=0)

    def _is_computed(self, array: Any) -> bool:
        return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)


class DoubleJaxSubject(JaxSubject):
    double = True


class JaxSide(SameLoss, JaxTraining):
    @contextmanager
    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> Iterator[JaxSubject]:
        kind = DoubleJaxSubject if double else JaxSubject
        precision = float64_enabled() if double else nullcontext()
        with keras_restored(), precision, opened(JaxTraining(), kind, plan, workload) as subject:
            yield subject

    def fewer_threads(self) -> AbstractContextManager[bool]:
        return threads_stay()


@contextmanager
def float64_enabled() -> Iterator[None]:
    """Let JAX have float64, which it makes float32 of otherwise, for a while."""
    before = bool(jax.config.jax_enable_x64)
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


SIDE: ParityBackend = JaxSide()
