"""Keras 3, on each of its backends: fit, evaluate, train_on_batch, and optimisers in loops of the script's own.

Keras fetches a batch inside of its train function, between the hooks of callbacks, so that those alone can't tell
waiting from computing. While a fit lasts, the model's train function is one that fetches the batch under the clock and
hands it over; it is Keras's own function that computes with it.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from metalmark_agent.on_tensorflow import device_word, leading_size, traces_in_loop
from metalmark_agent.patches import Patches, defining, like
from metalmark_agent.recorder import CHECKPOINT, VALIDATION, Recorder, clock
from metalmark_agent.stepping import Stepping, stepping_of

OWN_FUNCTION = "TensorFlowTrainer._make_function.<locals>.function"
"""Keras's function for tf.data. It takes any other iterator too, and runs the same compiled step on what that gives."""
BLIND = "Keras asks tf.data for its batches inside of a compiled function here: waits for input can't be told."
IN_LOOP = "A tf.function makes many steps in one call: they count as equally long, and waits for input can't be told."
RUNNING_MEAN = "The losses are those that Keras shows: the mean over the epoch so far."


def hook(recorder: Recorder) -> Callable[[], None]:
    keras = sys.modules["keras"]
    backend = keras.backend.backend()
    patches = Patches()
    stepping = stepping_of(recorder, backend)
    watch = KerasLoops(recorder, stepping, backend, _callback_kind(keras))
    for name in ("fit", "evaluate"):
        patches.replace(defining(keras.Model, name), name, watch.with_callback)
    patches.replace(defining(keras.Model, "train_on_batch"), "train_on_batch", watch.one_step)
    patches.replace(defining(keras.Model, "test_on_batch"), "test_on_batch", watch.one_test)
    for name in ("save", "save_weights", "export"):
        if hasattr(keras.Model, name):
            patches.replace(defining(keras.Model, name), name, watch.checkpoint)
    if backend in TRACING:
        update = OwnUpdates(recorder, stepping, TRACING[backend])
        patches.replace(defining(keras.optimizers.Optimizer, "apply"), "apply", update.watched)
    return patches.undo


class OwnUpdates:
    """An optimiser's updates in a loop of the script's own: a step each, or part of a function that is traced."""

    def __init__(self, recorder: Recorder, stepping: Stepping, traces: Callable[[Any], bool]) -> None:
        self._recorder, self._stepping, self._traces = recorder, stepping, traces
        self._inside = False

    def watched(self, original: Any) -> Any:
        def apply(optimizer: Any, grads: Any, *arguments: Any, **options: Any) -> Any:
            if self._recorder.muted or self._inside:
                return original(optimizer, grads, *arguments, **options)
            if self._traces(grads):
                self._saw(optimizer)
                return original(optimizer, grads, *arguments, **options)
            self._inside = True
            begin = clock()
            try:
                result = original(optimizer, grads, *arguments, **options)
            finally:
                self._inside = False
            self._stepping.update(begin, clock())
            self._recorder.read_ready_losses()
            return result

        return like(apply, original)

    def _saw(self, optimizer: Any) -> None:
        self._stepping.saw_update()
        call = self._stepping.current
        if call is None or "tensorflow" not in sys.modules or not traces_in_loop():
            return
        tf = sys.modules["tensorflow"]

        def updates() -> int:
            with tf.init_scope():
                return int(optimizer.iterations.numpy())

        if call.counter is None:
            call.counter, call.counted = updates, updates()
            self._recorder.waits_known = False
            self._recorder.note(IN_LOOP)


class KerasLoops:
    """The loops that Keras runs for a script, one at a time."""

    def __init__(
        self, recorder: Recorder, stepping: Stepping, backend: str, callback_kind: Callable[[KerasLoop], Any]
    ) -> None:
        self.recorder, self.stepping, self.backend = recorder, stepping, backend
        self._callback_kind = callback_kind
        self._fit: KerasLoop | None = None
        self._saving = False

    def with_callback(self, original: Any) -> Any:
        """fit or evaluate, with a callback of ours among the script's."""
        signature = inspect.signature(original)
        trains = original.__name__ == "fit"

        def with_callback(model: Any, *arguments: Any, **options: Any) -> Any:
            outer = self._fit
            try:
                given = signature.bind(model, *arguments, **options)
            except TypeError:  # Keras says it better
                return original(model, *arguments, **options)
            callbacks = given.arguments.get("callbacks")
            if outer is not None and (trains or outer.is_in(callbacks)):
                return original(model, *arguments, **options)
            if outer is None and self.stepping.in_another_thread() and not trains:
                return original(model, *arguments, **options)
            loop = KerasLoop(self, model, trains=trains)
            loop.callback = self._callback_kind(loop)
            given.arguments["callbacks"] = added = _with(callbacks, loop.callback, model)
            muted, self.recorder.muted = self.recorder.muted, True
            if trains:
                self._fit, self.stepping.thread = loop, threading.get_ident()
            try:
                return original(*given.args, **given.kwargs)
            finally:
                loop.leave()
                if added is callbacks and callbacks is not None:
                    callbacks.callbacks.remove(loop.callback)
                if trains:
                    self._fit = outer
                self.recorder.muted = muted

        return like(with_callback, original)

    def one_step(self, original: Any) -> Any:
        def train_on_batch(model: Any, *arguments: Any, **options: Any) -> Any:
            recorder = self.recorder
            if recorder.muted:
                return original(model, *arguments, **options)
            begin = clock()
            self.stepping.begins(begin, updates=True)
            recorder.muted = True
            try:
                result = original(model, *arguments, **options)
            finally:
                recorder.muted = False
            end = clock()
            _describe(recorder, model, arguments[0] if arguments else options.get("x"))
            self.stepping.update(end, end)
            loss = _loss(result)
            if loss is not None:
                recorder.loss_is(recorder.steps, loss)
            return result

        return like(train_on_batch, original)

    def one_test(self, original: Any) -> Any:
        def test_on_batch(*arguments: Any, **options: Any) -> Any:
            begin = clock()
            try:
                return original(*arguments, **options)
            finally:
                end = clock()
                self.recorder.outside(VALIDATION, begin, end)
                self.stepping.waited(end)

        return like(test_on_batch, original)

    def checkpoint(self, original: Any) -> Any:
        def save(*arguments: Any, **options: Any) -> Any:
            if self._saving:
                return original(*arguments, **options)
            self._saving = True
            begin = clock()
            try:
                return original(*arguments, **options)
            finally:
                end = clock()
                self._saving = False
                self.recorder.outside(CHECKPOINT, begin, end)
                self.stepping.waited(end)

        return like(save, original)


class KerasLoop:
    """One call of fit or evaluate, as its callback tells of it."""

    def __init__(self, loops: KerasLoops, model: Any, *, trains: bool) -> None:
        self.callback: Any = None
        self._loops, self._model, self._trains = loops, model, trains
        self._recorder = loops.recorder
        self._train = SeenFunction(loops.recorder, "train_function")
        self._test = SeenFunction(loops.recorder, "test_function")
        self._steps_before = 0
        self._batches: int | None = None
        """Of an epoch, where that is known."""

    def is_in(self, callbacks: Any) -> bool:
        return any(each is self.callback for each in getattr(callbacks, "callbacks", ()))

    def train_begins(self, batches: int | None) -> None:
        self._batches = batches
        _describe(self._recorder, self._model, None)
        self._recorder.is_trained_by(self._loops.backend)
        self._train.attach(self._model, batches=batches, done=self._stepped)

    def epoch_begins(self) -> None:
        self._steps_before = self._recorder.steps
        self._train.begin(clock())

    def train_batch_begins(self) -> None:
        self._train.expect(clock())

    def train_batch_ended(self, batch: int, logs: Any) -> None:
        """Called in another thread where Keras does not wait for the device. It has read the numbers by then."""
        loss = _loss(logs)
        if loss is not None:
            self._recorder.note(RUNNING_MEAN)
            # The last of several steps at once may be fewer than Keras says.
            step = min(batch + 1, self._batches) if self._batches else batch + 1
            self._recorder.loss_is(self._steps_before + step, loss)

    def train_batch_is_over(self) -> None:
        if not self._loops.stepping.in_another_thread():
            self._train.edge = clock()

    def test_begins(self) -> None:
        now = clock()
        if self._trains:
            self._train.close(now)
        batches = getattr(getattr(self._model, "_eval_epoch_iterator", None), "num_batches", None)
        self._test.attach(self._model, batches=batches)
        self._test.begin(now)

    def test_batch_begins(self) -> None:
        self._test.expect(clock())

    def test_ended(self) -> None:
        self._test.close(clock())
        self._test.detach()

    def epoch_ended(self) -> None:
        self._train.close(clock())

    def leave(self) -> None:
        """Also after an error."""
        now = clock()
        for function in (self._test, self._train):
            function.close(now)
            function.detach()

    def _stepped(self, begin: float, end: float, count: int) -> None:
        recorder = self._recorder
        recorder.muted = False
        recorder.step(begin, end, count=count)
        recorder.muted = True


class SeenFunction:
    """A model's train or test function with a clock around its batches, for as long as one fit lasts."""

    def __init__(self, recorder: Recorder, attribute: str) -> None:
        self.edge = self.got_at = 0.0
        """When the last step was over, and when a batch was there that Keras had fetched beforehand."""
        self._recorder, self._attribute = recorder, attribute
        self._model: Any = None
        self._original: Any = None
        self._expected = self._open = False
        self._given = 0
        """Number of batches in this pass, so far."""
        self._done: Callable[[float, float, int], None] = lambda *_: None

    def attach(
        self,
        model: Any,
        *,
        batches: int | None,
        done: Callable[[float, float, int], None] = lambda *_: None,
    ) -> None:
        self.detach()
        self._model, self._batches, self._done = model, batches, done
        self._reattach()

    def _reattach(self) -> None:
        """A callback of the script may have had the function made anew."""
        function = getattr(self._model, self._attribute, None)
        if function is not self and function is not None:
            self._original = function
            setattr(self._model, self._attribute, self)

    def detach(self) -> None:
        """Give the model its own function back."""
        if self._model is not None and getattr(self._model, self._attribute) is self:
            setattr(self._model, self._attribute, self._original)
        self._model = None

    def expect(self, at: float) -> None:
        """A callback has told of the next call."""
        if self._model is not None:
            self.got_at, self._expected = at, True
            self._reattach()

    def begin(self, at: float) -> None:
        self.edge, self._given, self._open = at, 0, True
        self._recorder.muted = False
        self._recorder.open_pass(id(self), at)
        self._recorder.muted = True

    def close(self, at: float) -> None:
        if self._open:
            self._open = False
            self._recorder.muted = False
            self._recorder.close_pass(id(self), at)
            self._recorder.muted = True

    def got(self, waited_s: float, end: float, batch: Any) -> None:
        """A batch has come. The first of a pass also waited for its loader to begin."""
        recorder = self._recorder
        if not self._given:
            waited_s += max(0.0, self.got_at - self.edge)
        recorder.muted = False
        recorder.batch(id(self), end - waited_s, end)
        recorder.muted = True
        if recorder.batch_size is None and batch is not None:
            recorder.batch_size = leading_size(batch)

    def __call__(self, *arguments: Any) -> Any:
        """JAX's function takes its state and an iterator, the others' the iterator alone or a list of batches."""
        function = self._original
        expected, self._expected = self._expected, False
        if not expected or not self._open:
            return function(*arguments)
        *before, batches = arguments
        timed = None
        steps = getattr(self._model, "steps_per_execution", 1)
        if isinstance(batches, (list, tuple)):
            began = self.edge if self._given else self.got_at
            self.got(self.got_at - began, self.got_at, batches[0] if batches else None)
            steps = len(batches)
        else:
            timed = SeenBatches(batches, self)
            if not hasattr(batches, "get_next"):
                batches = timed
            elif self._can_take_over(function, batches):
                # Fetched before: given an iterator that has ended, the function would fail in its own way.
                batches = iter((next(timed),))
            else:
                timed = None
                self._recorder.waits_known = False
                self._recorder.note(BLIND)
                self.got(0.0, clock(), None)
        returned = function(*before, batches)
        if timed is not None:
            steps = timed.given
        if self._batches is not None:
            # What is left for the last of several steps at once may be less.
            steps = max(1, min(steps, self._batches - self._given))
        self._given += steps
        self.edge = clock()
        self._done(self.edge, self.edge, steps)
        return returned

    def _can_take_over(self, function: Any, batches: Any) -> bool:
        """Whether the function does the same with a batch as with the iterator that gives it: one step at a time, and
        one device."""
        plain = not type(batches).__name__.startswith("Distributed")
        one = getattr(self._model, "steps_per_execution", 1) == 1
        return plain and one and getattr(function, "__qualname__", "") == OWN_FUNCTION

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._original, memo)


class SeenBatches:
    """An iterator whose batches are waited for under the clock."""

    def __init__(self, batches: Iterator[Any], function: SeenFunction) -> None:
        self.given = 0
        self._batches, self._function = batches, function

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = clock()
        batch = next(self._batches)
        end = clock()
        self._function.got(end - began, end, batch)
        self.given += 1
        return batch


def _callback_kind(keras: Any) -> Callable[[KerasLoop], Any]:
    """Return a class: what Keras is only known here."""

    class MetalmarkCallback(keras.callbacks.Callback):  # type: ignore[misc]
        async_safe = True
        """Without this word Keras would wait for the device after each step, on the backends where else it does not."""

        def __init__(self, loop: KerasLoop) -> None:
            super().__init__()
            self.loop = loop

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.train_begins((self.params or {}).get("steps"))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.epoch_begins()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.train_batch_begins()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.loop.train_batch_ended(batch, logs)
            self.loop.train_batch_is_over()

        def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.test_begins()

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.test_batch_begins()

        def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.test_ended()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.loop.epoch_ended()

    return MetalmarkCallback


def _with(callbacks: Any, ours: Any, model: Any) -> Any:
    """Return the script's callbacks and ours, which comes last, so that theirs are no part of a wait."""
    if callbacks is None:
        return [ours]
    if hasattr(callbacks, "callbacks"):
        callbacks.append(ours)
        ours.set_model(model)
        ours.set_params(getattr(callbacks, "params", None) or {})
        return callbacks
    return [*callbacks, ours] if isinstance(callbacks, (list, tuple)) else [callbacks, ours]


def _describe(recorder: Recorder, model: Any, batch: Any) -> None:
    if not recorder.device:
        value = next((each.value for each in getattr(model, "trainable_variables", ())), None)
        device = getattr(value, "device", "")
        recorder.device = getattr(device, "platform", "") or device_word(str(device))
    if recorder.batch_size is None and batch is not None:
        recorder.batch_size = leading_size(batch)


def _loss(logs: Any) -> float | None:
    """Return the loss among the numbers that Keras shows: the first of them, or the one that is named so."""
    if isinstance(logs, dict):
        named = [value for name, value in logs.items() if name == "loss"]
        named += [value for name, value in logs.items() if "loss" in str(name)]
        logs = named[0] if named else None
    elif isinstance(logs, (list, tuple)):
        logs = logs[0] if logs else None
    try:
        return float(logs) if logs is not None else None
    except (TypeError, ValueError):
        return None


def _tensorflow_traces(_: Any) -> bool:
    return not sys.modules["tensorflow"].executing_eagerly()


def _jax_traces(gradients: Any) -> bool:
    jax = sys.modules["jax"]
    return any(isinstance(each, jax.core.Tracer) for each in jax.tree_util.tree_leaves(gradients))


def _torch_traces(_: Any) -> bool:
    return bool(sys.modules["torch"].compiler.is_compiling())


TRACING: dict[str, Callable[[Any], bool]] = {
    "tensorflow": _tensorflow_traces,
    "jax": _jax_traces,
    "torch": _torch_traces,
}
"""How each backend says that a function is traced, and not run."""
