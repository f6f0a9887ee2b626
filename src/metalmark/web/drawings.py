"""Figures that were drawn already. A record never changes, and drawing takes a core as long as reading a thousand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from markupsafe import Markup

KEPT = 64

Key = tuple[str, ...]


class Drawings:
    """The last so many, shared by the server's threads; one draws at a time, for the sake of who measures."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._found: OrderedDict[Key, Markup] = OrderedDict()

    def get(self, key: Key, draw: Callable[[], Markup]) -> Markup:
        with self._lock:
            if key not in self._found:
                self._found[key] = draw()
                while len(self._found) > self._kept:
                    self._found.popitem(last=False)
            self._found.move_to_end(key)
            return self._found[key]
