"""MLX in the user's process: one memory for all devices, and nothing computed before it is asked for."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from metalmark.kit.frameworks import ChosenDevice, Later, refuse_unless_scalar


def owns(value: Any) -> bool:
    return isinstance(value, mx.array)


def best_device() -> ChosenDevice:
    word = "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu"
    return ChosenDevice(word, framework="mlx", why=f"MLX's default device here is the {word}.")


def move(value: Any, device: Any) -> Any:  # noqa: ARG001
    return value  # an array lies in no device's memory: operations have a device, arrays have none


def from_numpy(array: np.ndarray, device: Any) -> Any:  # noqa: ARG001
    return mx.array(array)


def to_numpy(value: Any) -> np.ndarray:
    return np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value)


def synchronize(values: Sequence[Any]) -> None:
    mx.eval(*values)
    mx.synchronize()


def keep(value: Any) -> Later | float:
    refuse_unless_scalar(value.size)
    return _MlxScalar(value)


def reader(kind: type) -> None:  # noqa: ARG001
    return None


class _MlxScalar(Later):
    """Begun, not waited for: an array that is never computed would hold on to all that it is computed from."""

    def __init__(self, value: Any) -> None:
        # Another handle: `total += loss` changes the one that the user has.
        super().__init__(value.astype(mx.float32).reshape(()))
        mx.async_eval(self._value)  # type: ignore[no-untyped-call]

    def value(self) -> float:
        return float(self._value.item())
