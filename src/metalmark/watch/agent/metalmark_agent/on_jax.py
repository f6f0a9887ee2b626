"""JAX: loops that a script writes itself.

A step is a call of the compiled function inside of which an optimiser of optax or Keras updates, or that update itself
where it is outside of any; with neither, a call that computes gradients. What is inside of a function is seen while JAX
traces it. A call returns before the device has done the work: the host waits where the script reads a value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from metalmark_agent.patches import Patches, defining, like
from metalmark_agent.recorder import CHECKPOINT, Recorder, clock
from metalmark_agent.stepping import Call, ReadyLoss, Stepping, stepping_of
from metalmark_agent.syncs import Syncs

WAITING_METHODS = {
    "block_until_ready": ".block_until_ready()",
    "item": ".item()",
    "tolist": ".tolist()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "if",
    "__index__": "int()",
    "__array__": "np.asarray()",
    "__format__": "print",
    "__str__": "print",
    "__repr__": "print",
}
WAITING_FUNCTIONS = {"block_until_ready": "jax.block_until_ready()", "device_get": "jax.device_get()"}
COMPILATION = "/jax/core/compile/"
"""How the names of what JAX tells about compiling begin."""
WORTH_A_NOTE_S = 0.1


def hook(recorder: Recorder) -> Callable[[], None]:
    jax = sys.modules["jax"]
    patches = Patches()
    stepping = stepping_of(recorder, "jax")
    losses = JaxLosses(jax)

    def compile_calls(original: Any) -> Any:
        def jit(*arguments: Any, **options: Any) -> Any:
            made = original(*arguments, **options)
            if hasattr(made, "lower"):
                return CompiledByJax(made, recorder, stepping, losses)

            def decorate(function: Any) -> Any:
                return CompiledByJax(made(function), recorder, stepping, losses)

            return like(decorate, made) if callable(made) else made

        return like(jit, original)

    def differentiate(original: Any) -> Any:
        def differentiate(*arguments: Any, **options: Any) -> Any:
            return watched_gradients(original(*arguments, **options), original.__name__ == "value_and_grad")

        return like(differentiate, original)

    def watched_gradients(function: Any, has_value: bool) -> Any:
        def gradients(*arguments: Any, **options: Any) -> Any:
            if stepping.current is not None or recorder.muted or losses.traces((arguments, options)):
                stepping.saw_gradients()
                return function(*arguments, **options)
            begin = clock()
            stepping.begins(begin)
            result = function(*arguments, **options)
            end = clock()
            recorder.backward(begin, end)
            losses.describe(recorder, result, arguments)
            value = result[0] if has_value else None
            loss = losses.reader(value[0] if isinstance(value, tuple) and value else value)
            stepping.gradients(end, loss)
            return result

        return like(gradients, function)

    def put(original: Any) -> Any:
        def device_put(x: Any, *arguments: Any, **options: Any) -> Any:
            size = losses.host_bytes(x)
            if not size:
                return original(x, *arguments, **options)
            begin = clock()
            result = original(x, *arguments, **options)
            recorder.copy(size, begin, clock())
            return result

        return like(device_put, original)

    syncs = Syncs(recorder, stepping)
    for name in ("jit", "pmap"):
        patches.replace(jax, name, compile_calls)
    for name in ("grad", "value_and_grad"):
        patches.replace(jax, name, differentiate)
    patches.replace(jax, "device_put", put)
    syncs.watch(patches, jax, WAITING_FUNCTIONS)
    array = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
    if array is not None:
        syncs.watch(patches, array, WAITING_METHODS)
    stop_listening = _follow_compiling(jax, recorder)

    def undo() -> None:
        stop_listening()
        patches.undo()

    return undo


def hook_optax(recorder: Recorder) -> Callable[[], None]:
    """After the import of optax."""
    patches = Patches()
    stepping = stepping_of(recorder, "jax")
    losses = JaxLosses(sys.modules["jax"])

    def apply_updates(original: Any) -> Any:
        def apply_updates(params: Any, updates: Any, *arguments: Any, **options: Any) -> Any:
            if stepping.current is not None or recorder.muted or losses.traces(updates):
                stepping.saw_update()
                return original(params, updates, *arguments, **options)
            begin = clock()
            result = original(params, updates, *arguments, **options)
            stepping.update(begin, clock())
            recorder.read_ready_losses()
            return result

        return like(apply_updates, original)

    patches.replace(sys.modules["optax"], "apply_updates", apply_updates)
    return patches.undo


def hook_orbax(recorder: Recorder) -> Callable[[], None]:
    """After the import of Orbax's checkpoints."""
    patches = Patches()
    module = sys.modules["orbax.checkpoint"]
    for kind in ("CheckpointManager", "Checkpointer", "PyTreeCheckpointer", "StandardCheckpointer"):
        owner = getattr(module, kind, None)
        if isinstance(owner, type) and "save" in vars(owner):
            patches.replace(defining(owner, "save"), "save", lambda original: _checkpoint(recorder, original))
    return patches.undo


class CompiledByJax:
    """A compiled function with a clock around its calls. All else is the function's own."""

    def __init__(self, jitted: Any, recorder: Recorder, stepping: Stepping, losses: JaxLosses) -> None:
        self._jitted, self._recorder, self._stepping, self._losses = jitted, recorder, stepping, losses
        self._call = Call(getattr(jitted, "__name__", "a compiled function"))
        like(self, jitted)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        stepping, call = self._stepping, self._call
        if stepping.current is not None or self._recorder.muted or stepping.in_another_thread():
            outer = stepping.current
            if outer is not None:
                # Traced on its own before, so that what is inside is not seen again.
                outer.updates |= call.updates
                outer.computes_gradients |= call.computes_gradients
            return self._jitted(*arguments, **options)
        stepping.current = call
        begin = clock()
        try:
            result = self._jitted(*arguments, **options)
        finally:
            stepping.current = None
        if (call.updates or call.computes_gradients) and not self._losses.traces((arguments, options)):
            end = clock()
            stepping.begins(begin, updates=call.updates)
            self._losses.describe(self._recorder, result, arguments)
            loss = self._losses.reader(self._losses.loss_in(call, result))
            if call.updates:
                stepping.update(end, end, loss, name=call.name)
            else:
                stepping.gradients(end, loss)
            self._recorder.read_ready_losses()
        return result

    def lower(self, *arguments: Any, **options: Any) -> Any:
        return self._jitted.lower(*arguments, **options)

    def trace(self, *arguments: Any, **options: Any) -> Any:
        return self._jitted.trace(*arguments, **options)

    def eval_shape(self, *arguments: Any, **options: Any) -> Any:
        return self._jitted.eval_shape(*arguments, **options)

    def clear_cache(self) -> None:
        self._jitted.clear_cache()

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundToInstance(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._jitted.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(self._jitted)


class BoundToInstance:
    """A compiled method of an object."""

    def __init__(self, compiled: CompiledByJax, instance: Any) -> None:
        self.__func__, self.__self__ = compiled, instance
        self._bound = compiled._jitted.__get__(instance)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__func__(self.__self__, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "_bound":
            raise AttributeError(name)
        return getattr(self._bound, name)


class JaxLosses:
    """What is asked of JAX's arrays, and waits for none of them."""

    def __init__(self, jax: Any) -> None:
        self._jax, self._leaves = jax, jax.tree_util.tree_leaves
        array = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
        self._float = getattr(array, "__float__", float)
        """As it was before it was watched."""

    def traces(self, values: Any) -> bool:
        """Whether a function is traced, and not run."""
        tracer = self._jax.core.Tracer
        return any(isinstance(each, tracer) for each in self._leaves(values))

    def reader(self, value: Any) -> ReadyLoss | None:
        if value is None or not hasattr(value, "is_ready") or getattr(value, "ndim", None) != 0:
            return None
        return ReadyLoss(value, self._float, lambda array: bool(array.is_ready()))

    def loss_in(self, call: Call, result: Any) -> Any:
        """Return the loss in what a function returned: the number that is named so, or the only one that is none of
        the optimiser's or the network's."""
        if call.loss_of is None:
            index = self._loss_index(result)
            call.loss_of = (lambda leaves: leaves[index] if index < len(leaves) else None) if index >= 0 else _none
        return call.loss_of(self._leaves(result)) if call.loss_of is not _none else None

    def _loss_index(self, result: Any) -> int:
        pairs, _ = self._jax.tree_util.tree_flatten_with_path(result)
        numbers = [
            (index, self._jax.tree_util.keystr(path).lower())
            for index, (path, leaf) in enumerate(pairs)
            if getattr(leaf, "ndim", None) == 0 and getattr(getattr(leaf, "dtype", None), "kind", "") in "fV"
        ]
        named = [index for index, path in numbers if "loss" in path]
        if named:
            return named[0]
        # A network's and an optimiser's own numbers are deeper than what the function itself returns.
        shallow = [index for index, path in numbers if path.count("[") + path.count(".") <= 1]
        only = shallow or [index for index, _ in numbers]
        return only[0] if len(only) == 1 else -1

    def describe(self, recorder: Recorder, result: Any, arguments: tuple[Any, ...]) -> None:
        if recorder.device:
            return
        leaf = next((each for each in self._leaves(result) if hasattr(each, "devices")), None)
        device = next(iter(leaf.devices()), None) if leaf is not None else None
        recorder.device = str(getattr(device, "platform", ""))
        recorder.device_name = str(getattr(device, "device_kind", ""))
        if recorder.batch_size is None and arguments:
            sizes = {getattr(each, "shape", ())[:1] for each in self._leaves(arguments[-1])}
            size = sizes.pop() if len(sizes) == 1 else ()
            recorder.batch_size = int(size[0]) if size else None

    def host_bytes(self, values: Any) -> int:
        """Return the size of those that are in the host's memory."""
        return sum(int(getattr(each, "nbytes", 0)) for each in self._leaves(values) if type(each).__module__ == "numpy")


def _none(_: Any) -> None:
    return None


def _checkpoint(recorder: Recorder, original: Any) -> Any:
    def save(*arguments: Any, **options: Any) -> Any:
        begin = clock()
        try:
            return original(*arguments, **options)
        finally:
            recorder.outside(CHECKPOINT, begin, clock())

    return like(save, original)


def _follow_compiling(jax: Any, recorder: Recorder) -> Callable[[], None]:
    """Keep a note of how long JAX compiled, and of what it compiled after the first step. Return what ends that."""
    total = {"first_s": 0.0, "later_s": 0.0, "later": 0.0}
    told = [""]

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if not event.startswith(COMPILATION) or not event.endswith("backend_compile_duration"):
            return
        if recorder.steps:
            total["later_s"] += duration_secs
            total["later"] += 1
        else:
            total["first_s"] += duration_secs
        if total["first_s"] + total["later_s"] < WORTH_A_NOTE_S:
            return
        sentence = f"JAX compiled for {total['first_s']:.1f} s until the first step was over"
        if total["later"]:
            sentence += f", and {total['later']:.0f} functions in {total['later_s']:.1f} s after it"
        sentence += "."
        if told[0] in recorder.notes:
            recorder.notes.remove(told[0])
        told[0] = sentence
        recorder.notes.append(sentence)

    monitoring = getattr(jax, "monitoring", None)
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return lambda: None
    register(listen)
    unregister = getattr(monitoring, "unregister_event_duration_listener", None)
    return (lambda: unregister(listen)) if unregister is not None else (lambda: None)
