"""WHAT is trained: one module per network. It imports no framework; the `on_*.py` beside it import one each."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from metalmark.model.workload import Builder, Params, Recipe

ALL_FAMILIES = ("torch", "keras", "mlx")
ADAM_EPSILON = 1e-8
"""PyTorch's and MLX's default. Keras' is 1e-7, so its builders give this one: all frameworks train alike."""


def builders(
    package: str, *details: Any, function: str = "build", families: Sequence[str] = ALL_FAMILIES
) -> dict[str, Builder]:
    """Return what builds a network, per family of frameworks: `function(*details, params)` of the package's
    `on_FAMILY.py`, which is imported only when it is called."""
    return {family: partial(_build, f"{package}.on_{family}", function, details) for family in families}


def _build(module: str, function: str, details: tuple[Any, ...], params: Params) -> Recipe:
    recipe: Recipe = getattr(import_module(module), function)(*details, params)
    return recipe
