"""Pace: what is dear to ask is asked less often than the sampler comes by."""

from __future__ import annotations

import time
from collections.abc import Callable

TOOL_EVERY_S = 5.0
"""For what starts a process: five of those a second would be a load of their own."""


class Pace:
    def __init__(self, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now = now
        self._next_s = -float("inf")

    def due(self) -> bool:
        """True the first time, and then once in every `every_s`."""
        now_s = self._now()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True
