"""Metalmark: how fast, how correctly and how cheaply a machine trains a network.

Importing it imports no framework, and next to nothing else: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalmark.workload import Batch, Param, Recipe, Workload

__version__ = "0.1.0"

__all__ = ["Batch", "Param", "Recipe", "Workload", "__version__"]

_HOMES = dict.fromkeys(("Batch", "Param", "Recipe", "Workload"), "metalmark.workload")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'metalmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
