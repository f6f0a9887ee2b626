"""The four lines every training script gets wrong: pick the device, move a batch, come back to NumPy, wait.

Batches may be nested as the user likes: tensors in dicts, lists, tuples, named tuples and dataclasses.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from metalmark.kit.frameworks import ChosenDevice, device_framework, framework_of, imported, owner, tools_for, unwrapped

NUMERIC = "biufc"


def device(framework: str | None = None) -> ChosenDevice:
    """Return the best device here: mps, then cuda, then another accelerator, then cpu; `.why` says what decided.

    The first framework that the script has imported is asked, or the one named. It is a string, as that framework
    spells it: `model.to(mm.device())`, `tf.device(mm.device())`.
    """
    return tools_for(framework, "mm.device()").best_device()


def to_device(batch: Any, device: Any) -> Any:
    """Return the batch with every tensor on the device, NumPy arrays as tensors there, and all else as it is.

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
    """Return an array of any framework on any device as NumPy's, without its gradient; bfloat16 becomes float32.

    A nest of them comes back as the same nest of arrays. On the CPU memory may be shared: copy before you change it.
    """

    def array(value: Any) -> Any:
        tools = owner(value)
        return value if tools is None else tools.to_numpy(value)

    made = map_leaves(array, x)
    is_nest = isinstance(x, Mapping | list | tuple) or (dataclasses.is_dataclass(x) and not isinstance(x, type))
    return made if is_nest else np.asarray(made)


def synchronize(*values: Any) -> None:
    """Return when the devices of every imported framework are idle, and `values` (in any nest) are computed.

    MLX computes nothing until it is asked to: pass it what it is to compute.
    """
    mine: dict[str, list[Any]] = {name: [] for name in imported()}
    leaves: list[Any] = []
    map_leaves(leaves.append, values)
    for value in leaves:
        if owner(value) is not None:
            mine[str(framework_of(value))].append(value)
    for name, theirs in mine.items():
        tools_for(name, "mm.synchronize()").synchronize(theirs)


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same nest with `change` applied to what is not a container; the containers given stay unchanged."""
    tree = unwrapped(tree)
    if owner(tree) is not None or isinstance(tree, str | bytes):
        return change(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        # Not dataclasses.replace: it refuses fields that __init__ does not take.
        made: Any = copy.copy(tree)
        for field in dataclasses.fields(tree):
            object.__setattr__(made, field.name, map_leaves(change, getattr(tree, field.name)))
        return made
    if isinstance(tree, dict):
        made = copy.copy(tree)  # a defaultdict keeps its factory
        for key, value in tree.items():
            made[key] = map_leaves(change, value)
        return made
    if isinstance(tree, Mapping):
        return type(tree)({key: map_leaves(change, value) for key, value in tree.items()})  # type: ignore[call-arg]
    if isinstance(tree, list | tuple):
        parts = [map_leaves(change, value) for value in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    return change(tree)
