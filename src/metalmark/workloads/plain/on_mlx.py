from functools import partial
from typing import Any

from mlx import core as mx
from mlx import nn, optimizers

from metalmark.model.nest import flatten, is_number
from metalmark.model.workload import Recipe


def recipe(model: nn.Module, *, with_targets: bool) -> Recipe:  # noqa: ARG001  only Keras models bring a loss
    """Targets of an example stay unused: which loss they belong to is not known."""
    return Recipe(model=model, loss=stand_in, optimizer=partial(optimizers.Adam, 1e-3))


def stand_in(outputs: Any, _: Any) -> Any:
    """Return the model's own loss where it is one number, else the mean square distance from 1, -1, 1, ..."""
    if is_number(outputs):
        return outputs
    leaves = [leaf.astype(mx.float32) for leaf in flatten(outputs)[0]]
    return sum((mx.square(leaf - _pattern(leaf)).mean() for leaf in leaves), mx.array(0.0))


def _pattern(leaf: Any) -> Any:
    return 1.0 - 2.0 * (mx.arange(leaf.shape[-1]) % 2)
