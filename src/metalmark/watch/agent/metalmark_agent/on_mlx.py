"""MLX: loops that a script writes itself.

MLX only notes what is to be computed, and computes it where the script asks for a value, most often in mx.eval. So a
step begins with its gradients, or with the compiled function inside of which an optimiser updates, and ends where the
script then waited. One that no wait follows ends where the next one begins.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

from metalmark_agent.on_tensorflow import leading_size
from metalmark_agent.patches import Patches, like
from metalmark_agent.recorder import CHECKPOINT, Recorder, clock, place_of
from metalmark_agent.stepping import Call, Stepping, stepping_of

WAITING_FUNCTIONS = {"eval": "mx.eval()", "synchronize": "mx.synchronize()"}
WAITING_METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "if",
    "__array__": "np.asarray()",
    "__format__": "print",
    "__str__": "print",
    "__repr__": "print",
}
SAVING_FUNCTIONS = ("save", "savez", "savez_compressed", "save_safetensors", "save_gguf")


def hook(recorder: Recorder) -> Callable[[], None]:
    """After the import of mlx.core."""
    mx = sys.modules["mlx.core"]
    patches = Patches()
    steps = _steps_of(recorder)

    def compile_calls(original: Any) -> Any:
        def compile(*arguments: Any, **options: Any) -> Any:
            made = original(*arguments, **options)
            function = arguments[0] if arguments else options.get("fun")
            if str(getattr(function, "__module__", "")).startswith("mlx."):
                return made
            outputs = options.get("outputs", arguments[2] if len(arguments) > 2 else None)
            return steps.compiled(made, function, outputs)

        return like(compile, original)

    def differentiate(original: Any) -> Any:
        has_value = original.__name__ == "value_and_grad"

        def differentiate(*arguments: Any, **options: Any) -> Any:
            return steps.gradients(original(*arguments, **options), has_value)

        return like(differentiate, original)

    for name in ("grad", "value_and_grad"):
        patches.replace(mx, name, differentiate)
    patches.replace(mx, "compile", compile_calls)
    for name, call in WAITING_FUNCTIONS.items():
        patches.replace(mx, name, functools.partial(steps.waiting, call))
    for name, call in WAITING_METHODS.items():
        patches.replace(mx.array, name, functools.partial(steps.waiting, call))
    for name in SAVING_FUNCTIONS:
        patches.replace(mx, name, steps.saving)
    # A step after which nothing was waited for.
    atexit.register(steps.settle)

    def undo() -> None:
        steps.settle()
        atexit.unregister(steps.settle)
        patches.undo()

    return undo


def hook_optimizers(recorder: Recorder) -> Callable[[], None]:
    """After the import of mlx.optimizers."""
    patches = Patches()
    steps = _steps_of(recorder)
    patches.replace(sys.modules["mlx.optimizers"].Optimizer, "apply_gradients", steps.updating)
    patches.replace(sys.modules["mlx.nn"].Module, "train", steps.switching)
    return patches.undo


class MlxSteps:
    """The step under way: what it was made of, until the script waits for it."""

    def __init__(self, recorder: Recorder, stepping: Stepping) -> None:
        self._recorder, self._stepping = recorder, stepping
        self._gradients_began: float | None = None
        self._update: tuple[float, float, str] | None = None
        self._end = 0.0
        self._loss: Any = None
        """An array that MLX may not have computed yet. Reading it then would compute it where the script does not."""
        self._outputs: Any = None
        """What the compiled function that gave the loss computes together with it."""
        self._inside = False

    def settle(self, end: float | None = None) -> None:
        """The step is over."""
        end = self._end if end is None else end
        if self._update is not None:
            begin, updated, name = self._update
            self._stepping.update(end - (updated - begin), end, name=name)
        elif self._gradients_began is not None:
            self._stepping.gradients(end)
        self._update = self._gradients_began = None

    def compiled(self, made: Any, function: Any, outputs: Any) -> Any:
        name = getattr(function, "__name__", "a compiled function")
        calls: dict[tuple[Any, ...], Call] = {}

        def compiled(*arguments: Any, **options: Any) -> Any:
            stepping, kind = self._stepping, _kind(arguments)
            call = calls.get(kind)
            if call is None:
                call = calls[kind] = Call(name)
            if stepping.current is not None or self._recorder.muted or stepping.in_another_thread():
                if stepping.current is not None:
                    stepping.current.updates |= call.updates
                    stepping.current.computes_gradients |= call.computes_gradients
                return made(*arguments, **options)
            steps = call.updates or call.computes_gradients
            begin = clock()
            if steps:
                self._begins(begin, arguments, updates=call.updates)
            stepping.current = call
            try:
                result = made(*arguments, **options)
            finally:
                stepping.current = None
            if call.updates or call.computes_gradients:
                if not steps:  # seen while it was traced, just now
                    self._begins(begin, arguments, updates=call.updates)
                self._end = clock()
                self._take_loss(_loss_in(result), outputs)
                if call.updates:
                    self._update = self._end, self._end, call.name
                else:
                    self._gradients_began = begin
            return result

        return like(compiled, made)

    def gradients(self, function: Any, has_value: bool) -> Any:
        def gradients(*arguments: Any, **options: Any) -> Any:
            stepping = self._stepping
            if stepping.current is not None:
                stepping.saw_gradients()
                return function(*arguments, **options)
            if self._recorder.muted or stepping.in_another_thread():
                return function(*arguments, **options)
            begin = clock()
            if self._gradients_began is None:
                self._begins(begin, arguments)
            result = function(*arguments, **options)
            self._end = clock()
            if self._gradients_began is not None and self._update is None:
                # A second part of the same step, unless no optimiser ever updates.
                self._stepping.gradients(begin)
                self._stepping.begins(begin)
            self._gradients_began = begin
            if has_value:
                self._take_loss(_loss_in(result[0]), None)
            return result

        return like(gradients, function)

    def updating(self, original: Any) -> Any:
        def apply_gradients(*arguments: Any, **options: Any) -> Any:
            if self._stepping.current is not None:
                self._stepping.saw_update()
                return original(*arguments, **options)
            begin = clock()
            if self._update is not None:
                self.settle()
            result = original(*arguments, **options)
            self._end = clock()
            self._update = begin, self._end, ""
            return result

        return like(apply_gradients, original)

    def waiting(self, call: str, original: Any) -> Any:
        def waiting(*arguments: Any, **options: Any) -> Any:
            if self._inside or self._stepping.in_another_thread():
                return original(*arguments, **options)
            self._inside = True
            begin = clock()
            try:
                return original(*arguments, **options)
            finally:
                end = clock()
                self._inside = False
                self._recorder.sync(call, place_of(sys._getframe(1)), begin, end)
                self.settle(end)
                self._stepping.waited(end)
                self._read_loss(arguments)

        return like(waiting, original)

    def switching(self, original: Any) -> Any:
        """A network that is switched to evaluation, and back."""

        def train(module: Any, mode: bool = True) -> Any:
            if mode:
                self._recorder.evaluation_ends(id(module), clock())
            else:
                self.settle()
                begin = clock()
                self._stepping.pauses(begin)
                self._recorder.evaluation_begins(id(module), begin)
            return original(module, mode)

        return like(train, original)

    def saving(self, original: Any) -> Any:
        def save(*arguments: Any, **options: Any) -> Any:
            begin = clock()
            self.settle(begin)
            try:
                return original(*arguments, **options)
            finally:
                end = clock()
                self._recorder.outside(CHECKPOINT, begin, end)
                self._stepping.waited(end)

        return like(save, original)

    def _begins(self, begin: float, arguments: tuple[Any, ...], *, updates: bool = False) -> None:
        self.settle()
        self._stepping.begins(begin, updates=updates)
        self._describe(arguments)

    def _describe(self, arguments: tuple[Any, ...]) -> None:
        recorder, mx = self._recorder, sys.modules["mlx.core"]
        if recorder.batch_size is None:
            arrays = [each for each in arguments if isinstance(each, mx.array) and each.ndim > 0]
            recorder.batch_size = leading_size(arrays[0]) if arrays else None
        if not recorder.device:
            recorder.device = "gpu" if "gpu" in str(mx.default_device()) else "cpu"
            info = getattr(mx, "device_info", None)
            recorder.device_name = str(info().get("device_name", "")) if info is not None else ""

    def _take_loss(self, value: Any, outputs: Any) -> None:
        self._loss, self._outputs = value, outputs
        self._loss_step = self._recorder.steps + 1

    def _read_loss(self, evaluated: tuple[Any, ...]) -> None:
        loss, outputs = self._loss, self._outputs
        if loss is None:
            return
        if _contains(evaluated, loss) or (outputs is not None and _contains(evaluated, outputs, *_parts(outputs))):
            self._loss = self._outputs = None
            self._inside = True
            try:
                self._recorder.loss_is(self._loss_step, float(loss.item()))
            finally:
                self._inside = False


_steps: dict[int, MlxSteps] = {}


def _steps_of(recorder: Recorder) -> MlxSteps:
    known = _steps.get(id(recorder))
    if known is None or known._recorder is not recorder:
        known = _steps[id(recorder)] = MlxSteps(recorder, stepping_of(recorder, "mlx"))
    return known


def _kind(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what MLX traces a function anew for: one with a switch may update for one value, and not for another."""
    return tuple([each if isinstance(each, (bool, int, str, type(None))) else type(each) for each in arguments])


def _parts(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (list, tuple)) else ()


def _contains(values: Any, *wanted: Any) -> bool:
    """Whether one of the wanted objects is among the values, or in one of their lists."""
    for each in values:
        if any(each is one for one in wanted):
            return True
        if isinstance(each, (list, tuple)) and _contains(each, *wanted):
            return True
    return False


def _loss_in(result: Any) -> Any:
    """Return the loss in what a function returned: a number, the first of several, or the one that is named so."""
    array = sys.modules["mlx.core"].array
    if isinstance(result, dict):
        named = [value for name, value in result.items() if "loss" in str(name)]
        result = named[0] if named else None
    elif isinstance(result, (tuple, list)):
        result = next((each for each in result if isinstance(each, array) and each.ndim == 0), None)
    return result if isinstance(result, array) and result.ndim == 0 else None
