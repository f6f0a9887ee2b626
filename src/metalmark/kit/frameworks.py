"""Which framework: the one an object belongs to, or those that the user's script has imported; no other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, cast

from metalmark.errors import NotInstalledError, UsageError
from metalmark.kit.base import Tools

NAMES = ("torch", "tensorflow", "jax", "mlx")
"""In the order in which they are asked when a script has imported several."""
_MODULES = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "mlx": "mlx.core"}
_OWNERS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jax", "mlx": "mlx"}


def owner(value: Any) -> Tools | None:
    """The framework whose array this is, a subclass's too; None for plain Python and NumPy."""
    name = framework_of(value)
    if name is None:
        return None
    tools = _load(name)
    return tools if tools.owns(value) else None


def framework_of(value: Any) -> str | None:
    kind: type = type(value)
    return _framework_of(kind)


def unwrapped(value: Any) -> Any:
    """Keras wraps a framework's variable in its own."""
    return value.value if _root(type(value)) == "keras" and hasattr(value, "value") else value


def imported() -> list[str]:
    return [name for name in NAMES if _MODULES[name] in sys.modules]


def tools_for(framework: str | None, what: str) -> Tools:
    """The framework asked for, else the first that the script has imported."""
    if framework is None:
        found = imported()
        if not found:
            raise UsageError(
                f"{what} chooses among the frameworks that your script has imported; it has imported none.",
                hint='Import one first (import torch), or name it: mm.device("torch").',
            )
        framework = found[0]
    if framework not in NAMES:
        raise UsageError(f"There is no framework {framework!r}.", hint=f"There are: {', '.join(NAMES)}.")
    try:
        return _load(framework)
    except ModuleNotFoundError as error:
        if error.name != _MODULES[framework].partition(".")[0]:
            raise
        raise NotInstalledError(
            f"{what} needs {framework}, which this Python does not have.",
            hint=f"pip install 'metalmark[{framework}]'",
        ) from error


def device_framework(device: Any) -> str | None:
    """Whose device this is; None for a plain word."""
    known: str | None = getattr(device, "framework", None)
    return known if isinstance(known, str) else framework_of(device)


def versions() -> dict[str, str]:
    """Of what the script has imported."""
    found = {}
    for name in imported():
        version = getattr(sys.modules[_MODULES[name]], "__version__", None)
        if isinstance(version, str):
            found[name] = str(version)  # PyTorch has a class of its own for it
    return found


_load = cast(Callable[[str], Tools], cache(lambda name: import_module(f"metalmark.kit.on_{name}")))


@cache
def _framework_of(kind: type) -> str | None:
    return next((_OWNERS[_root(each)] for each in kind.__mro__ if _root(each) in _OWNERS), None)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]
