from typing import Any

import keras
from keras import ops

from metalmark.model.nest import flatten
from metalmark.model.workload import Recipe


def recipe(model: Any, *, with_targets: bool) -> Recipe:
    """A compiled model with targets for it brings everything itself."""
    if with_targets and getattr(model, "compiled", False):
        return Recipe(model=model)
    return Recipe(model=model, loss=stand_in, optimizer=keras.optimizers.Adam)


def stand_in(_: Any, outputs: Any) -> Any:
    """Return the mean square distance of the outputs from 1, -1, 1, ..."""
    leaves = [ops.cast(leaf, "float32") for leaf in flatten(outputs)[0]]
    return sum(ops.mean(ops.square(leaf - _pattern(leaf))) for leaf in leaves)


def _pattern(leaf: Any) -> Any:
    return 1.0 - 2.0 * ops.cast(ops.arange(leaf.shape[-1]) % 2, "float32")
