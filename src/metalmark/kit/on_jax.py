"""JAX in the user's process: arrays never change and tell whether they are ready."""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metalmark.errors import UsageError
from metalmark.kit.frameworks import RETURN_IT, ChosenDevice, Later, refuse_unless_scalar

PLAIN = (np.float64, np.float32, np.float16)


def owns(value: Any) -> bool:
    return isinstance(value, jax.Array)


def best_device() -> ChosenDevice:
    found = jax.devices()
    why = f"JAX's default here is {found[0].device_kind} ({found[0].platform}), one of {len(found)}."
    return ChosenDevice(found[0].platform, framework="jax", why=why)


def move(value: Any, device: Any) -> Any:
    if isinstance(device, str):
        platform, _, index = device.lower().partition(":")
        device = jax.devices(platform)[int(index or 0)]
    return jax.device_put(value, device)


from_numpy = move


def to_numpy(value: Any) -> np.ndarray:
    _refuse_traced(value)
    if jnp.issubdtype(value.dtype, jnp.floating) and value.dtype not in PLAIN:
        value = value.astype(jnp.float32)
    return np.asarray(value)


def synchronize(values: Sequence[Any]) -> None:
    jax.block_until_ready(list(values))
    # Others import JAX on their own (TensorFlow does): to ask it for arrays would start it and take a GPU's memory.
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if started is not None and not started():
        return
    # Independent computations end in any order, so the last one's end is not the end of all.
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()


def keep(value: Any) -> Later | float:
    _refuse_traced(value)
    refuse_unless_scalar(value.size)
    return _JaxScalar(value)


def reader(kind: type) -> None:  # noqa: ARG001
    return None


class _JaxScalar(Later):
    def ready(self) -> bool:
        return bool(self._value.is_ready())

    def value(self) -> float:
        # NumPy's reshape: JAX's would be a computation of its own, for each of a run's numbers.
        return float(np.asarray(self._value).reshape(()))


def _refuse_traced(value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
        raise UsageError("Inside a jitted function an array has no value yet.", hint=RETURN_IT)
