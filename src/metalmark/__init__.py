"""Metalmark: how fast, how correctly and how cheaply a machine trains a network.

Importing it imports no framework, and next to nothing else: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalmark.kit.arrays import device, synchronize, to_device, to_numpy
    from metalmark.kit.loading import loader
    from metalmark.kit.running import run
    from metalmark.kit.timing import Stopwatch, measure
    from metalmark.model.workload import Batch, Param, Recipe, Workload

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Param",
    "Recipe",
    "Stopwatch",
    "Workload",
    "__version__",
    "device",
    "loader",
    "measure",
    "run",
    "synchronize",
    "to_device",
    "to_numpy",
]

_HOMES = {
    **dict.fromkeys(("Batch", "Param", "Recipe", "Workload"), "metalmark.model.workload"),
    **dict.fromkeys(("device", "synchronize", "to_device", "to_numpy"), "metalmark.kit.arrays"),
    "loader": "metalmark.kit.loading",
    "run": "metalmark.kit.running",
    **dict.fromkeys(("Stopwatch", "measure"), "metalmark.kit.timing"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'metalmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
