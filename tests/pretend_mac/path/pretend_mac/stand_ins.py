"""Stand-ins for modules: what a Mac answers otherwise, what it lacks, and the real module for everything else."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = {
    "ctypes",
    "fcntl",
    "importlib.metadata",
    "mlx.core",
    "os",
    "platform",
    "platformdirs",
    "psutil",
    "resource",
    "select",
    "selectors",
    "signal",
    "sys",
    "sysconfig",
    "tensorflow",
    "time",
    "torch",
}
_made: dict[str, StandIn] = {}
SHARED = {"stdin", "stdout", "stderr", "argv", "excepthook", "dont_write_bytecode"}
"""What everybody has to see when it is set in sys."""
SIMULATED = "simulated"
"""What PyTorch calls the device behind the pretend Mac's Metal: it refuses the name mps."""


class StandIn(ModuleType):
    """`changed` and `missing` decide; the real module has the rest. What a test sets stays here, but for a few
    of sys."""

    def __init__(self, real: Any, changed: dict[str, Any], missing: set[str]) -> None:
        super().__init__(getattr(real, "__name__", "stand-in"))
        self.__dict__.update(changed)
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_missing", missing)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} (on a Mac)")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._real is sys and name in SHARED:
            setattr(sys, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [name for name in {*dir(self._real), *self.__dict__} if name not in self._missing]


def stand_in(name: str, real: ModuleType) -> ModuleType:
    """The one stand-in of a module for the whole process."""
    if isinstance(real, StandIn):
        return real
    if name not in _made:
        answers = import_module(f"pretend_mac.modules.{name.replace('.', '_')}")
        _made[name] = StandIn(real, answers.changed(real), getattr(answers, "MISSING", set()))
    return _made[name]


def stand_in_from(what: str, value: Any) -> Any:
    """`from module import name`: the name as a Mac has it."""
    module, _, name = what.partition(":")
    if f"{module}.{name}" in MODULES:
        return stand_in(f"{module}.{name}", value)
    try:
        return getattr(stand_in(module, sys.modules[module]), name)
    except AttributeError as error:
        raise ImportError(f"cannot import name {name!r} from {module!r} (on a Mac)") from error


def device_type(value: Any) -> Any:
    """`value.type`: a device of the simulated accelerator says mps."""
    found = value.type
    return "mps" if isinstance(found, str) and found == SIMULATED else found


def text_of(value: Any) -> str:
    """`str(value)`: a device of the simulated accelerator says mps."""
    text = str(value)
    return text.replace(SIMULATED, "mps") if type(value).__name__ == "device" else text
