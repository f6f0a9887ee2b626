"""Metalmark: how fast, how correctly and how cheaply a machine trains a network.

Importing it imports no framework, and next to nothing else: each name is fetched when it is first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalmark.app.bench import bench
    from metalmark.app.compare import compare
    from metalmark.app.doctor import doctor
    from metalmark.app.explain import explain
    from metalmark.app.parity import parity
    from metalmark.app.report import report
    from metalmark.app.runs import runs
    from metalmark.app.train import train
    from metalmark.kit.arrays import device, synchronize, to_device, to_numpy
    from metalmark.kit.callbacks import keras_callback, lightning_callback, transformers_callback
    from metalmark.kit.loading import loader
    from metalmark.kit.running import run
    from metalmark.kit.timing import Stopwatch, measure
    from metalmark.model.workload import Batch, Data, Param, Recipe, Task, Workload

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Data",
    "Param",
    "Recipe",
    "Stopwatch",
    "Task",
    "Workload",
    "__version__",
    "bench",
    "compare",
    "device",
    "doctor",
    "explain",
    "keras_callback",
    "lightning_callback",
    "loader",
    "measure",
    "parity",
    "report",
    "run",
    "runs",
    "synchronize",
    "to_device",
    "to_numpy",
    "train",
    "transformers_callback",
    "tune",
]

_HOMES = {
    **{
        name: f"metalmark.app.{name}"
        for name in ("bench", "compare", "doctor", "explain", "parity", "report", "runs", "train", "tune")
    },
    **dict.fromkeys(("Batch", "Data", "Param", "Recipe", "Task", "Workload"), "metalmark.model.workload"),
    **dict.fromkeys(("device", "synchronize", "to_device", "to_numpy"), "metalmark.kit.arrays"),
    **dict.fromkeys(("keras_callback", "lightning_callback", "transformers_callback"), "metalmark.kit.callbacks"),
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


class _Package(ModuleType):
    """`mm.doctor`, `mm.explain`, `mm.report` and `mm.tune` are functions, though rooms of the package have their names
    too: importing a room would put it in the function's place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
