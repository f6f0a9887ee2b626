"""The four lines every training script gets wrong: pick the device, move a batch, come back to NumPy, wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from metalmark.kit.base import Device
from metalmark.kit.frameworks import device_framework, framework_of, imported, owner, tools_for
from metalmark.kit.nest import is_nest, leaves, map_leaves

NUMERIC = "biufc"


def device(framework: str | None = None) -> Device:
    """The best device here: mps, then cuda, then another accelerator, then cpu; `.why` says what decided.

    Asked of the first framework that the script has imported, or of the one named. It is a string, in that
    framework's words: `model.to(mm.device())`, `tf.device(mm.device())`.
    """
    return tools_for(framework, "mm.device()").best_device()


def to_device(batch: Any, device: Any) -> Any:
    """The batch with every tensor on the device, and NumPy arrays made tensors there; other things stay as they are.

    Where the device has no float64 (Metal), it becomes float32, with one warning.
    """

    def place(value: Any) -> Any:
        tools = owner(value)
        if tools is not None:
            return tools.move(value, device)
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMERIC:
            return tools_for(device_framework(device), "mm.to_device()").from_numpy(value, device)
        return value

    return map_leaves(place, batch)


def to_numpy(x: Any) -> Any:
    """An array of any framework on any device as NumPy's, without its gradient; bfloat16 becomes float32.

    A nest of them comes back as the same nest of arrays. On the CPU memory may be shared: copy before you change it.
    """
    made = map_leaves(_array, x)
    return made if is_nest(x) else np.asarray(made)


def synchronize(*values: Any) -> None:
    """Return when the devices of every imported framework are idle, and `values` (in any nest) are computed.

    MLX computes nothing until it is asked to: give it what it shall compute.
    """
    mine: dict[str, list[Any]] = {name: [] for name in imported()}
    for value in leaves(values):
        if owner(value) is not None:
            mine[str(framework_of(value))].append(value)
    for name, theirs in mine.items():
        tools_for(name, "mm.synchronize()").synchronize(theirs)


def _array(value: Any) -> Any:
    tools = owner(value)
    return value if tools is None else tools.to_numpy(value)
