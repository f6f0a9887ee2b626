"""Patches: attributes of a framework that are replaced while something is recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

MISSING = object()


class Patches:
    """Attributes that were replaced. One that someone else has replaced since then is left as it is."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`. An owner that has no such attribute stays as it is."""
        original = getattr(owner, name, None)
        if original is None:
            return
        before = vars(owner).get(name, MISSING)
        made = make(original)
        setattr(owner, name, made)
        self._made.append((owner, name, before, made))

    def undo(self) -> None:
        while self._made:
            owner, name, before, made = self._made.pop()
            if vars(owner).get(name) is made:
                if before is MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)


def defining(kind: type, name: str) -> type:
    """Return the class in which a method is defined."""
    return next((each for each in kind.__mro__ if name in vars(each)), kind)


def like(made: Any, original: Any) -> Any:
    """Give a function the names of the one it stands for."""
    try:
        return functools.update_wrapper(made, original)
    except (AttributeError, TypeError):  # what is built in has not all of the names
        return made
