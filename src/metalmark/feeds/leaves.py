"""A batch as a flat tuple of NumPy arrays, which every loader can carry between processes, and the form it had."""

from typing import Any

import numpy as np

from metalmark.errors import UnsupportedError
from metalmark.model.nest import Layout, flatten
from metalmark.model.workload import Batch

Arrays = tuple[np.ndarray, ...]
"""The leaves of the inputs, then those of the targets."""


def leaves_of(batch: Batch) -> tuple[Arrays, Layout]:
    """Take a batch apart into NumPy arrays, whatever its arrays were."""
    if not isinstance(batch, Batch):
        raise UnsupportedError(
            f"`batch` returned a {type(batch).__name__}, not a Batch.",
            hint="Return metalmark.Batch(inputs=..., targets=...).",
        )
    leaves, layout = flatten({"inputs": batch.inputs, "targets": batch.targets})
    names = tuple(name.replace("['inputs']", "inputs").replace("['targets']", "targets") for name in layout.names)
    return tuple(map(as_numpy, leaves, names)), Layout(names, layout.join)


def as_numpy(leaf: Any, name: str) -> np.ndarray:
    if hasattr(leaf, "detach"):  # a PyTorch tensor, perhaps on a device
        leaf = leaf.detach().cpu()
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(f"{name} of a batch is no array: {error}", hint="Give arrays or tensors.") from error
    if array.dtype == object or array.dtype.kind in "USV":
        raise UnsupportedError(
            f"{name} of a batch is a {type(leaf).__name__} of {array.dtype}, which no framework computes with.",
            hint="Give arrays of numbers; turn words into token numbers first.",
        )
    return array
