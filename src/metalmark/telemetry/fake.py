"""FakeSensor: plays a script of readings and faults, for tests of everything that uses a sensor."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

from metalmark.telemetry.base import Reading

HANG: Final = object()
"""A step of the script: `read` does not return until `release` is set."""


class FakeSensor:
    """Each step answers one `read`: an exception is raised, HANG hangs, anything else is returned as it is."""

    source = "script"

    def __init__(self, steps: Iterable[Any], *, name: str = "fake", unavailable: str | None = None) -> None:
        self.name = name
        self.spent = threading.Event()
        """Set when the script is over and all that it gave has been read."""
        self.hanging = threading.Event()
        self.release = threading.Event()
        self.closed = threading.Event()
        self._steps = iter(steps)
        self._unavailable = unavailable

    def available(self) -> str | None:
        return self._unavailable

    def read(self) -> list[Reading]:
        step = next(self._steps, None)
        if step is None:
            self.spent.set()
            return []
        if step is HANG:
            self.hanging.set()
            self.release.wait()
            return []
        if isinstance(step, BaseException):
            raise step
        return step  # type: ignore[no-any-return]  # nonsense is what it is for

    def close(self) -> None:
        self.closed.set()
