"""Frameworks as the kit sees them: the tools each `on_*.py` has, the same functions in the same order.

Only the framework that an object belongs to is used, or those that the user's script has imported; no other.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from metalmark.errors import NotInstalledError, UsageError

NAMES = ("torch", "tensorflow", "jax", "mlx")
"""In the order in which they are asked when a script has imported several."""
_MODULES = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "mlx": "mlx.core"}
RETURN_IT = "Return it, and use it where the function is called."
_OWNERS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jax", "mlx": "mlx"}


class ChosenDevice(str):
    """The name a framework knows the device by, so it can be used wherever that name can; `why` says how it was
    chosen."""

    framework: str
    why: str

    def __new__(cls, word: str, *, framework: str, why: str) -> "ChosenDevice":
        made = super().__new__(cls, word)
        made.framework, made.why = framework, why
        return made

    @property
    def type(self) -> str:
        return self.partition(":")[0].lower()

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, str]]:
        return (str(self),), {"framework": self.framework, "why": self.why}


class Later(ABC):
    """A number that the device may still be computing."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def ready(self) -> bool:
        """Return whether `value` need not wait; always False where that can't be asked without waiting."""
        return False

    @abstractmethod
    def value(self) -> float: ...


class Tools(Protocol):
    def owns(self, value: Any) -> bool:
        """Return whether this is one of the framework's arrays, or has some and can be moved whole, as a module can."""
        ...

    def best_device(self) -> ChosenDevice: ...
    def move(self, value: Any, device: Any) -> Any: ...
    def from_numpy(self, array: np.ndarray, device: Any) -> Any: ...
    def to_numpy(self, value: Any) -> np.ndarray: ...

    def synchronize(self, values: Sequence[Any]) -> None:
        """Return when the devices in use are idle and `values`, which are this framework's, are computed."""

    def keep(self, value: Any) -> Later | float:
        """Keep a scalar as it is now, whatever happens to it afterwards, without waiting for the device."""
        ...

    def reader(self, kind: type) -> Callable[[Any], object] | None:
        """Return what is quicker than `keep` for arrays of exactly this type, if anything is: it waits for no device
        either, and where it returns no float, `keep` is asked."""


def refuse_unless_scalar(size: int) -> None:
    if size != 1:
        raise UsageError(f"log() takes numbers; this array has {size} elements.", hint="Log its mean, say.")


def owner(value: Any) -> Tools | None:
    """Return the tools of the framework whose array this is, a subclass's too; None for plain Python and NumPy."""
    name = framework_of(value)
    if name is None:
        return None
    tools = _load(name)
    return tools if tools.owns(value) else None


def framework_of(value: Any) -> str | None:
    kind: type = type(value)
    return _framework_of(kind)


@cache
def _framework_of(kind: type) -> str | None:
    return next((_OWNERS[_root(each)] for each in kind.__mro__ if _root(each) in _OWNERS), None)


def unwrapped(value: Any) -> Any:
    """Return the framework's variable, which Keras wraps in its own."""
    return value.value if _root(type(value)) == "keras" and hasattr(value, "value") else value


def imported() -> list[str]:
    return [name for name in NAMES if _MODULES[name] in sys.modules]


def tools_for(framework: str | None, what: str) -> Tools:
    """Return the tools of the framework asked for, else of the first that the script has imported."""
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
            f"{what} needs {framework}, which this Python does not have.", hint=f"pip install 'metalmark[{framework}]'"
        ) from error


def device_framework(device: Any) -> str | None:
    """Return which framework this device belongs to; None for a plain string."""
    known: str | None = getattr(device, "framework", None)
    return known if isinstance(known, str) else framework_of(device)


def versions() -> dict[str, str]:
    """Return the versions of what the script has imported."""
    found = {name: getattr(sys.modules[_MODULES[name]], "__version__", None) for name in imported()}
    # PyTorch has a class of its own for it.
    return {name: str(version) for name, version in found.items() if isinstance(version, str)}


_load = cast(Callable[[str], Tools], cache(lambda name: import_module(f"metalmark.kit.on_{name}")))


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]
