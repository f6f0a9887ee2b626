"""Syncs: calls in which the host waits for the device."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from typing import Any

from metalmark_agent.patches import Patches, defining, like
from metalmark_agent.recorder import Recorder, clock, place_of
from metalmark_agent.stepping import Stepping


class Syncs:
    """Those of the thread that trains. One that another makes inside of itself is not told."""

    def __init__(self, recorder: Recorder, stepping: Stepping) -> None:
        self._recorder, self._stepping = recorder, stepping
        self._inside = False

    def watch(self, patches: Patches, owner: Any, calls: Mapping[str, str]) -> None:
        """Follow these functions of a module, or methods of a class; `calls`: how each is written in a script."""
        for name, call in calls.items():
            home = defining(owner, name) if isinstance(owner, type) else owner
            if name in vars(home) and home is not object:
                patches.replace(home, name, functools.partial(self._watched, call))

    def _watched(self, call: str, original: Any) -> Any:
        def wait(*arguments: Any, **options: Any) -> Any:
            if self._inside or self._stepping.in_another_thread():
                return original(*arguments, **options)
            self._inside = True
            begin, host_s = clock(), time.thread_time()
            try:
                return original(*arguments, **options)
            finally:
                end = clock()
                self._inside = False
                self._recorder.sync(call, place_of(sys._getframe(1)), begin, end)
                self._recorder.off_host(time.thread_time() - host_s)
                self._stepping.waited(end)

        return like(wait, original)
