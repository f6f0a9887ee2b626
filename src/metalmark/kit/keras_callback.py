"""The callback for Keras 3, on each of its backends.

Keras fetches a batch inside of its train function, between the hooks, so the hooks alone can't tell waiting from
computing. Here that function is replaced by one that fetches the batch under the clock and hands it over.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras

from metalmark.kit.fits import FitOptions, FitWatch, LoopWatch, clock

OWN_FUNCTION = "TensorFlowTrainer._make_function.<locals>.function"
"""Keras's function for tf.data. It takes any other iterator too, and runs the same compiled step on what that gives."""
END_OF_DATA = "OutOfRangeError"
"""TensorFlow's word for StopIteration."""


def make_callback(options: FitOptions) -> "KerasWatch":
    return KerasWatch(options)


class KerasWatch(FitWatch, keras.callbacks.Callback):  # type: ignore[misc]
    LIBRARY = "keras"

    async_safe = True
    """Without this word Keras would wait for the device after each step, on the backends where else it does not."""

    def __init__(self, options: FitOptions) -> None:
        super().__init__(options)
        self._train = FitFunction("train_function")
        self._test = FitFunction("test_function")
        self._thread = 0
        self._counted = False
        self._unlogged: Mapping[str, Any] = {}
        """The last step's numbers, which may still be on the device."""

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._let_go()
        self._thread, self._counted, self._unlogged = threading.get_ident(), False, {}
        # Not self.model: asking for that copies JAX's state back into the model.
        model = self._model
        given = self.params or {}
        known = {"epochs": given.get("epochs"), "steps_per_epoch": given.get("steps")}
        params = {
            **{name: value for name, value in known.items() if value is not None},
            **({"optimizer": type(model.optimizer).__name__} if getattr(model, "optimizer", None) else {}),
            "backend": keras.backend.backend(),
        }
        self._fits.begin(model.name, params, {"keras": keras.__version__})
        batches = known["steps_per_epoch"]
        self._train.attach(model, self._fits.train, batches=batches, done=self._stepped, failed=self._failed)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if not self._fits.is_open:
            return
        if not self._counted:
            # Here, since a callback that restores a checkpoint does so before.
            self._fits.step, self._counted = _iterations(self._model), True
        self._train.begin(clock())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._train.expect(clock())
        # Another callback may have had the function made anew.
        self._train.reattach()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Called in another thread where Keras waits for no device; where it does, these are plain numbers by now."""
        if threading.get_ident() == self._thread and self._fits.is_open:
            numbers = logs or {}
            # In the function's order, the loss first: Keras has sorted these by their names.
            self._fits.log({name: numbers[name] for name in (*self._unlogged, *numbers) if name in numbers})
            self._unlogged = {}
            self._train.edge = clock()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._fits.is_open:
            now = clock()
            self._log_the_rest()
            batches = getattr(getattr(self._model, "_eval_epoch_iterator", None), "num_batches", None)
            self._test.attach(self._model, self._fits.validate(now), batches=batches, failed=self._failed)
            self._test.edge, self._test.given = now, 0

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._test.expect(clock())

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._test.close(clock())
        self._test.detach()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        if self._fits.is_open:
            self._train.close(clock())
            self._log_the_rest()
            # The epoch's own are the last step's again; new are those of validation, and what other callbacks add.
            self._fits.log({name: value for name, value in (logs or {}).items() if name not in self._train.names})

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._let_go()
        self._fits.end()

    def _stepped(self, steps: int, logs: Mapping[str, Any]) -> None:
        self._log_the_rest()
        self._fits.step += steps
        self._unlogged = logs

    def _log_the_rest(self) -> None:
        if self._unlogged:
            self._fits.log(self._unlogged)
            self._unlogged = {}

    def _failed(self, error: BaseException) -> None:
        self._let_go()
        self._fits.end(error)

    def _let_go(self) -> None:
        self._train.detach()
        self._test.detach()


class FitFunction:
    """A model's train or test function with a clock around its batches, for as long as one fit lasts."""

    def __init__(self, attribute: str) -> None:
        self.names: set[str] = set()
        """Of the numbers that the function returns."""
        self.edge = self.got_at = 0.0
        """When the last step was over, and when a batch was there that Keras had fetched beforehand."""
        self.given = 0
        """Number of batches in this pass, so far."""
        self._attribute = attribute
        self._model: Any = None
        self._loop: LoopWatch | None = None
        self._original: Any = None
        self._watched: Any = None
        self._expected = False

    def attach(
        self,
        model: Any,
        loop: LoopWatch,
        *,
        batches: int | None,
        done: Callable[[int, Mapping[str, Any]], None] = lambda steps, logs: None,  # noqa: ARG005
        failed: Callable[[BaseException], None],
    ) -> None:
        self.detach()
        self.names = set()
        self._model, self._loop, self._done, self._failed = model, loop, done, failed
        self._batches = batches
        self.reattach()

    def reattach(self) -> None:
        if self._model is None:
            return
        function = getattr(self._model, self._attribute)
        if function is not self._watched and function is not None:
            self._original, self._watched = function, partial(self._call, function)
            setattr(self._model, self._attribute, self._watched)

    def detach(self) -> None:
        """Give the model its own function back. One that a broken fit left behind goes on as if it were that."""
        if self._model is not None and getattr(self._model, self._attribute) is self._watched:
            setattr(self._model, self._attribute, self._original)
        self._model = self._loop = self._original = self._watched = None

    def expect(self, at: float) -> None:
        """A hook has told of the next call. A call without one is another fit's, after one that broke off."""
        self.got_at, self._expected = at, True

    def begin(self, at: float) -> None:
        if self._loop is not None:
            self._loop.begin(at)
            self.edge, self.given = at, 0

    def close(self, at: float) -> None:
        if self._loop is not None:
            self._loop.close(at)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """JAX's function takes its state and an iterator, the others' the iterator alone or a list of batches."""
        loop = self._loop
        expected, self._expected = self._expected, False
        if not expected or loop is None or loop.is_over:
            return function(*arguments)
        *before, batches = arguments
        most = getattr(self._model, "steps_per_execution", 1)
        timed = None
        try:
            if isinstance(batches, list | tuple):
                loop.asked(self.edge)
                loop.got(self.got_at - self.edge)
                most = len(batches)
            else:
                loop.asked(clock())
                timed = FitBatches(batches, loop)
                if not hasattr(batches, "get_next"):
                    batches = timed
                elif most == 1 and getattr(function, "__qualname__", "") == OWN_FUNCTION:
                    # Fetched before: given an iterator that has ended, the function would fail in its own way.
                    batches = iter((next(timed),))
                else:
                    # tf.data is asked inside of the compiled function, where no clock can be read.
                    loop.blind()
                    timed = None
            returned = function(*before, batches)
        except BaseException as error:
            if not isinstance(error, StopIteration) and type(error).__name__ != END_OF_DATA:
                self._failed(error)
            raise
        steps = timed.given if timed is not None else most
        if self._batches is not None:
            # What is left for the last of several steps at once may be less.
            steps = max(1, min(steps, self._batches - self.given))
        self.given += steps
        loop.done(steps)
        logs = _flat(returned[0] if before else returned)
        self.names.update(logs)
        self._done(steps, logs)
        self.edge = clock()
        return returned


class FitBatches:
    """An iterator whose batches are waited for under the clock."""

    def __init__(self, batches: Iterator[Any], loop: LoopWatch) -> None:
        self.given = 0
        self._batches, self._loop = batches, loop

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = clock()
        batch = next(self._batches)
        self._loop.got(clock() - began)
        self.given += 1
        return batch


def _iterations(model: Any) -> int:
    """Return how many steps the model's optimiser has made, this fit's and those before."""
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return int(keras.ops.convert_to_numpy(iterations)) if iterations is not None else 0


def _flat(logs: Any) -> dict[str, Any]:
    """Return the numbers as Keras shows them: those inside of another dictionary stand beside the others."""
    flat: dict[str, Any] = {}
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        flat.update(_flat(value) if isinstance(value, Mapping) else {name: value})
    return flat
