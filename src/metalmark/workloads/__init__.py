"""WHAT is trained: one module per network. It imports no framework; the `on_*.py` beside it import one each."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from metalmark.model.workload import Builder, Params, Recipe

ALL_FAMILIES = ("torch", "keras", "mlx")
ADAM_EPSILON = 1e-8
"""PyTorch's and MLX's default. Keras' is 1e-7, so its builders give this one: all frameworks train alike."""


@dataclass(frozen=True)
class LazyBuilder:
    """Builds a network by a function of a module, which is imported only when it is called."""

    module: str
    function: str
    details: tuple[Any, ...]

    def __call__(self, params: Params) -> Recipe:
        recipe: Recipe = getattr(import_module(self.module), self.function)(*self.details, params)
        return recipe


def builders(
    package: str, *details: Any, function: str = "build", families: Sequence[str] = ALL_FAMILIES
) -> dict[str, Builder]:
    """Return what builds a network, per family of frameworks: `function(*details, params)` of the package's
    `on_FAMILY.py`."""
    return {family: LazyBuilder(f"{package}.on_{family}", function, details) for family in families}
