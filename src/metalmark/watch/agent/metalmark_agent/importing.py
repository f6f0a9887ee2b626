"""Runs a function after a module was imported, whenever that is, and leaves the import itself as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HOOKS: dict[str, str] = {
    "torch": "metalmark_agent.on_torch:hook",
    "torch._dynamo": "metalmark_agent.on_torch:hook_compiler",
    "safetensors.torch": "metalmark_agent.on_torch:hook_safetensors",
    "keras": "metalmark_agent.on_keras:hook",
    "tensorflow": "metalmark_agent.on_tensorflow:hook",
    "jax": "metalmark_agent.on_jax:hook",
    "optax": "metalmark_agent.on_jax:hook_optax",
    "orbax.checkpoint": "metalmark_agent.on_jax:hook_orbax",
    "mlx.core": "metalmark_agent.on_mlx:hook",
    "mlx.optimizers": "metalmark_agent.on_mlx:hook_optimizers",
}
"""The function to call after a module was imported: `hook(recorder)`, which returns what undoes it."""


class ImportWatch:
    """A finder that finds nothing itself: it asks the others, and has `after(name)` called once a module of `names`
    was executed."""

    def __init__(self, names: Sequence[str], after: Callable[[str], None]) -> None:
        self._waiting = set(names)
        self._after = after
        self._asking: set[str] = set()

    def start(self) -> None:
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waiting or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    self._follow(spec.loader, name)
                    return spec
        finally:
            self._asking.discard(name)
        return None

    def _follow(self, loader: Any, name: str) -> None:
        """Have the loader call us when it has executed the module. It stays the same object, of the same class: what a
        library asks of its loader (its files, its source) is answered as before."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == name and name in self._waiting:
                self._waiting.discard(name)
                vars(loader).pop("exec_module", None)
                self._after(name)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # a loader that is a built-in class: the module is not followed
            return
