"""Ledger: what was logged, in order; numbers that are still on a device are read when that makes nobody wait."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from metalmark.errors import UsageError
from metalmark.kit.base import Later, refuse_unless_scalar
from metalmark.kit.frameworks import owner, unwrapped
from metalmark.watched import Curve

BATCH = 64
EVERY_S = 1.0
"""Numbers are sorted into curves so many at a time. After a step the processor's caches are the step's: a hundred
microseconds were seen for what takes ten when it is done again and again."""


Row = tuple[int, float, dict[str, Later | float]]
"""The step, when it was logged, and its numbers."""


class Ledger:
    def __init__(self, tell: Callable[[int, Mapping[str, float]], None]) -> None:
        """`tell(step, metrics)`: called for each row once its numbers are known, in the order they were logged."""
        self._tell = tell
        self._pending: deque[Row] = deque()
        self._unsorted = 0
        self._sort_at_s = EVERY_S
        self._keepers: dict[type, Callable[[Any], Later | float]] = {}
        self._curves: dict[str, tuple[array[int], array[float], array[float]]] = {}
        self.not_finite: dict[str, int] = {}
        """Metric → the first step at which it was no finite number."""

    def add(self, step: int, at_s: float, metrics: Mapping[str, Any]) -> None:
        kept: dict[str, Later | float] = {}
        for name, value in metrics.items():
            keep = self._keepers.get(type(value))
            kept[name] = self._first_of_its_kind(name, value) if keep is None else keep(value)
        self._pending.append((step, at_s, kept))
        self._unsorted += 1
        if self._unsorted >= BATCH or at_s >= self._sort_at_s:
            self._unsorted, self._sort_at_s = 0, at_s + EVERY_S
            self._settle_what_is_ready()

    def close(self) -> None:
        """The loop is over: now it may wait."""
        while self._pending:
            self._settle(*self._pending.popleft())

    def curves(self) -> tuple[Curve, ...]:
        return tuple(
            Curve(
                name=name,
                steps=tuple(steps),
                at_s=tuple(at_s),
                values=tuple(value if math.isfinite(value) else None for value in values),
            )
            for name, (steps, at_s, values) in self._curves.items()
        )

    def _settle_what_is_ready(self) -> None:
        pending = self._pending
        while pending and all(isinstance(value, int | float) or value.ready() for value in pending[0][2].values()):
            self._settle(*pending.popleft())

    def _settle(self, step: int, at_s: float, kept: Mapping[str, Later | float]) -> None:
        known: dict[str, float] = {}
        for name, value in kept.items():
            number = known[name] = float(value if isinstance(value, int | float) else value.value())
            curve = self._curves.get(name)
            if curve is None:
                curve = self._curves[name] = (array("q"), array("d"), array("d"))
            curve[0].append(step)
            curve[1].append(at_s)
            curve[2].append(number)
            if not math.isfinite(number):
                self.not_finite.setdefault(name, step)
        self._tell(step, known)

    def _first_of_its_kind(self, name: str, value: Any) -> Later | float:
        """Finds who keeps such a value, and remembers that once it has worked."""
        keep = _keeper(value)
        if keep is None:
            raise UsageError(
                f"log({name}=...) takes a number or a one-element array, not {type(value).__name__}.",
                hint="Log its mean, say.",
            )
        kept = keep(value)
        self._keepers[type(value)] = keep
        return kept


def _keeper(value: Any) -> Callable[[Any], Later | float] | None:
    if isinstance(value, int | float | np.number | np.bool_):
        return float
    inner = unwrapped(value)
    tools = owner(inner)
    if tools is not None:
        keep = tools.keep
        return keep if inner is value else lambda wrapped: keep(unwrapped(wrapped))
    return _from_numpy if isinstance(value, np.ndarray) else None


def _from_numpy(array: np.ndarray) -> float:
    refuse_unless_scalar(array.size)
    return float(array.reshape(()))
