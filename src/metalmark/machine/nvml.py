"""NVML, the NVIDIA driver's own library: opened for a moment, asked without an exception for what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metalmark.model.run import Absent

T = TypeVar("T")


class Nvml:
    def __init__(self, library: Any) -> None:
        self._library = library

    def ask(self, function: str, *arguments: object) -> Any:
        """The answer; None where this GPU, driver or binding does not know."""
        try:
            return getattr(self._library, function)(*arguments)
        except (self._library.NVMLError, AttributeError):
            return None

    def knows(self, name: str) -> Any:
        return getattr(self._library, name, None)


def with_nvml(describe: Callable[[Nvml], T]) -> T | Absent:
    """What `describe` makes of it; Absent, with the library's reason, where there is no driver that answers."""
    try:
        import pynvml
    except ImportError:
        return Absent("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(str(error))
    try:
        return describe(Nvml(pynvml))
    finally:
        pynvml.nvmlShutdown()
