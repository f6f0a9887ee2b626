"""What each `on_*.py` has, the same functions in the same order: a framework as the kit sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from metalmark.errors import UsageError


class Device(str):
    """The word a framework knows the device by, so it goes wherever that word goes; `why` says how it was chosen."""

    framework: str
    why: str

    def __new__(cls, word: str, *, framework: str, why: str) -> Device:
        made = super().__new__(cls, word)
        made.framework, made.why = framework, why
        return made

    @property
    def type(self) -> str:
        return self.partition(":")[0].lower()

    def __reduce__(self) -> tuple[Any, ...]:
        return _device, (str(self), self.framework, self.why)


def _device(word: str, framework: str, why: str) -> Device:
    return Device(word, framework=framework, why=why)


class Later(ABC):
    """A number that the device may still be computing."""

    @abstractmethod
    def ready(self) -> bool:
        """True when `value` needs to wait for nothing. False for ever where that can't be asked without waiting."""

    @abstractmethod
    def value(self) -> float: ...


class Tools(Protocol):
    def owns(self, value: Any) -> bool:
        """One of this framework's arrays, or what holds some and can be moved whole, as a module does."""
        ...

    def best_device(self) -> Device: ...

    def move(self, value: Any, device: Any) -> Any: ...

    def from_numpy(self, array: np.ndarray, device: Any) -> Any: ...

    def to_numpy(self, value: Any) -> np.ndarray: ...

    def synchronize(self, values: Sequence[Any]) -> None:
        """Return when the devices in use are idle and `values`, which are this framework's, are computed."""

    def keep(self, value: Any) -> Later | float:
        """A scalar as it is now, whatever happens to it afterwards, without waiting for the device."""
        ...

    def reader(self, kind: type) -> Callable[[Any], object] | None:
        """What is quicker than `keep` for arrays of this very type, if anything is: it waits for no device either, and
        where it gives no float, `keep` is asked."""


def refuse_unless_scalar(size: int) -> None:
    if size != 1:
        raise UsageError(f"log() takes numbers; this array has {size} elements.", hint="Log its mean, say.")
