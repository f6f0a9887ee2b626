"""TensorFlow: loops that a script writes itself. Those of Keras are told by its own hook.

A step is an optimiser's update, or, where that is inside of a tf.function, a call of the outermost one. Which function
has an update inside is seen while it is traced. Inside of one nothing else can be seen: neither its backward pass nor
the waits of an iterator that it asks itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from metalmark_agent.patches import Patches, defining, like
from metalmark_agent.recorder import Recorder, clock
from metalmark_agent.stepping import Call, ReadyLoss, stepping_of
from metalmark_agent.syncs import Syncs

WAITING_CALLS = {
    "numpy": ".numpy()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "if",
    "__index__": "int()",
    "__array__": "np.asarray()",
    "__format__": "print",
    "__str__": "print",
    "__repr__": "print",
}
LOOPS = ("while_body", "_scan_", "_reduce_", "Dataset")
"""In the names of graphs that TensorFlow runs many times in one call."""
BLIND = "A function that TensorFlow compiled asks for its batches itself: its waits for input can't be told."


def hook(recorder: Recorder) -> Callable[[], None]:
    tf = sys.modules["tensorflow"]
    patches = Patches()
    stepping = stepping_of(recorder, "tensorflow")
    calls: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
    numpy_of = getattr(_eager_tensor(), "_numpy", None)

    def read(tensor: Any) -> float:
        return float(numpy_of(tensor) if numpy_of is not None else tensor)

    def make_loss(value: Any) -> ReadyLoss | None:
        return ReadyLoss(value, read, _is_on_cpu) if value is not None else None

    def describe(tensor: Any) -> None:
        if not recorder.device:
            recorder.device = device_word(getattr(tensor, "device", ""))

    def call_function(original: Any) -> Any:
        def __call__(function: Any, *arguments: Any, **options: Any) -> Any:  # noqa: N807
            outer = stepping.current
            if outer is not None or recorder.muted:
                inner = calls.get(function)
                if outer is not None and inner is not None:
                    # Traced on its own before, so that its update is not seen again.
                    outer.updates |= inner.updates
                    outer.computes_gradients |= inner.computes_gradients
                return original(function, *arguments, **options)
            call = calls.get(function)
            if call is None:
                call = calls[function] = Call(getattr(function, "__name__", "a tf.function"))
            stepping.current = call
            begin = clock()
            try:
                result = original(function, *arguments, **options)
            finally:
                stepping.current = None
            if call.updates or call.computes_gradients:
                end = clock()
                stepping.begins(begin, updates=call.updates)
                value = _scalar(result)
                describe(value)
                if call.updates:
                    stepping.update(end, end, make_loss(value), name=call.name, count=call.new_steps())
                else:
                    stepping.gradients(end, make_loss(value))
                recorder.read_ready_losses()
            return result

        return like(__call__, original)

    def gradient(original: Any) -> Any:
        def gradient(tape: Any, target: Any, *arguments: Any, **options: Any) -> Any:
            if not tf.executing_eagerly():
                stepping.saw_gradients()
                return original(tape, target, *arguments, **options)
            begin = clock()
            stepping.begins(begin)
            result = original(tape, target, *arguments, **options)
            end = clock()
            recorder.backward(begin, end)
            value = _scalar(target)
            describe(value)
            stepping.gradients(end, make_loss(value))
            return result

        return like(gradient, original)

    def iterate(original: Any) -> Any:
        def __iter__(dataset: Any) -> Any:  # noqa: N807
            begin = clock()
            iterator = original(dataset)
            if not recorder.muted and tf.executing_eagerly():
                recorder.open_pass(id(iterator), begin)
                # Many scripts leave a loop before its loader has ended.
                weakref.finalize(iterator, _close, weakref.ref(recorder), id(iterator)).atexit = False
            return iterator

        return like(__iter__, original)

    def fetch(original: Any) -> Any:
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if recorder.muted or not tf.executing_eagerly() or stepping.in_another_thread():
                return original(iterator)
            begin = clock()
            try:
                batch = original(iterator)
            except StopIteration:
                recorder.end_pass(id(iterator), clock())
                raise
            recorder.batch(id(iterator), begin, clock())
            if recorder.batch_size is None:
                recorder.batch_size = leading_size(batch)
            return batch

        return like(__next__, original)

    def get_next(original: Any) -> Any:
        def get_next(iterator: Any, *arguments: Any, **options: Any) -> Any:
            if not recorder.muted and not tf.executing_eagerly():
                recorder.waits_known = False
                recorder.note(BLIND)
            return original(iterator, *arguments, **options)

        return like(get_next, original)

    syncs = Syncs(recorder, stepping)
    function_kind = type(tf.function(lambda: None))
    patches.replace(defining(function_kind, "__call__"), "__call__", call_function)
    patches.replace(defining(tf.GradientTape, "gradient"), "gradient", gradient)
    patches.replace(defining(tf.data.Dataset, "__iter__"), "__iter__", iterate)
    for kind in tf.data.Iterator.__subclasses__():
        if "__next__" in vars(kind):
            patches.replace(kind, "__next__", fetch)
            for name in ("get_next", "get_next_as_optional"):
                if name in vars(kind):
                    patches.replace(kind, name, get_next)
    eager = _eager_tensor()
    if eager is not None:
        syncs.watch(patches, eager, WAITING_CALLS)
    return patches.undo


def traces_in_loop() -> bool:
    """Whether what is traced just now will be run many times in one call."""
    graph = sys.modules["tensorflow"].compat.v1.get_default_graph()
    while graph is not None:
        if any(word in getattr(graph, "name", "") for word in LOOPS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def device_word(name: str) -> str:
    """Return "gpu:0" for TensorFlow's long name of a device, and "cpu" for its only one."""
    word = name.rpartition("device:")[2].lower()
    return "cpu" if word.startswith("cpu") else word


def leading_size(batch: Any) -> int | None:
    """Return the first dimension of the first array in a batch."""
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    try:
        return int(shape[0]) if shape else None
    except (TypeError, ValueError, IndexError):
        return None


def _eager_tensor() -> Any:
    """Return the class of tensors with values. Making one to ask it would fix which devices the script can use."""
    return getattr(sys.modules.get("tensorflow.python.framework.ops"), "EagerTensor", None)


def _scalar(value: Any) -> Any:
    """Return the loss in what a function returned: the only number in it, or the one that is named so."""
    named = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, (tuple, list)):
        named = [(str(index), each) for index, each in enumerate(value)]
        named += [pair for each in value if isinstance(each, dict) for pair in each.items()]
    elif not named:
        named = [("loss", value)]
    numbers = [(str(name), each) for name, each in named if _is_number(each)]
    losses = [each for name, each in numbers if "loss" in name]
    if losses:
        return losses[0]
    return numbers[0][1] if len(numbers) == 1 else None


def _is_number(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return shape is not None and getattr(shape, "rank", None) == 0 and getattr(dtype, "is_floating", False) is True


def _is_on_cpu(tensor: Any) -> bool:
    return "CPU" in getattr(tensor, "device", "")


def _close(recorder: weakref.ReferenceType[Recorder], key: int) -> None:
    there = recorder()
    if there is not None:
        there.close_pass(key, clock())
