"""TensorFlow in the user's process: eager values; inside a tf.function there are none to look at."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from metalmark.errors import UsageError
from metalmark.kit.frameworks import RETURN_IT, ChosenDevice, Later, refuse_unless_scalar

PLAIN = (tf.float64, tf.float32, tf.float16)


def owns(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Variable)


def best_device() -> ChosenDevice:
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        return ChosenDevice("GPU:0", framework="tensorflow", why=f"TensorFlow sees {len(gpus)} GPU.")
    why = "TensorFlow sees no GPU here; `metalmark doctor` says why."
    return ChosenDevice("CPU:0", framework="tensorflow", why=why)


def move(value: Any, device: Any) -> Any:
    with tf.device(str(device)):
        return tf.identity(value)


def from_numpy(array: np.ndarray, device: Any) -> Any:
    with tf.device(str(device)):
        return tf.convert_to_tensor(array)


def to_numpy(value: Any) -> np.ndarray:
    _refuse_symbolic(value)
    if value.dtype.is_floating and value.dtype not in PLAIN:
        value = tf.cast(value, tf.float32)
    return np.asarray(value.numpy())


def synchronize(values: Sequence[Any]) -> None:
    # A value on the host is proof that its inputs are done; sync_devices() is empty outside CUDA builds.
    for value in values:
        tf.reshape(value, [-1])[:1].numpy()
    # Others import TensorFlow on their own: to ask it for devices would start it, and take a GPU's memory.
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "context", None)
    if context is not None and not getattr(context(), "_initialized", True):
        return
    for gpu in tf.config.list_logical_devices("GPU"):
        with tf.device(gpu.name):
            (tf.zeros([]) + 1).numpy()


def keep(value: Any) -> Later | float:
    _refuse_symbolic(value)
    refuse_unless_scalar(int(np.prod(value.shape)))
    if "CPU" in value.device:
        return float(np.asarray(value.numpy()).reshape(()))
    return _TensorflowScalar(tf.identity(value))


def reader(kind: type) -> None:  # noqa: ARG001
    return None


class _TensorflowScalar(Later):
    """Fetching it waits for the device, so that is left until the loop is over. Tensors never change."""

    def value(self) -> float:
        return float(np.asarray(self._value.numpy()).reshape(()))


def _refuse_symbolic(value: Any) -> None:
    if not hasattr(value, "numpy") or not tf.executing_eagerly():
        raise UsageError("Inside a tf.function a tensor has no value yet.", hint=RETURN_IT)
