"""Ledger: what was logged, in order; numbers that are still on a device are read when that makes nobody wait."""

import math
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metalmark.errors import UsageError
from metalmark.kit.frameworks import Later, owner, refuse_unless_scalar, unwrapped
from metalmark.model.watch import Curve

EVERY_S = 1.0
"""How often numbers are sorted into curves, many at a time. After a step the processor's caches are the step's: a
hundred microseconds were seen for what takes ten when it is done again and again."""
BATCH = 64
"""So many rows with numbers that a device may still be computing are not left to wait for that."""

LoggedRow = tuple[int, float, dict[str, Any]]
"""The step, when it was logged by time.perf_counter(), and its numbers."""

clock = time.perf_counter


class Ledger:
    def __init__(self, tell: Callable[[Sequence[LoggedRow]], None]) -> None:
        """`tell(rows)`: called for rows whose numbers are known by now, in the order they were logged."""
        self._tell = tell
        self._pending: list[LoggedRow] = []
        self._due_s, self._ask_at = 0.0, BATCH
        self._keepers: dict[type, Callable[[Any], object]] = {}
        """By type: what gives the number, or what will be one. Whatever else it gives is looked at closer."""
        self._curves: dict[str, tuple[array[int], array[float], array[float]]] = {}
        self.not_finite: dict[str, int] = {}
        """Metric → the first step at which it was no finite number."""

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Keeps `metrics` itself, with numbers, or what will be numbers, in the place of arrays.

        It runs once a step, with cold caches: what is written in an odd way here was measured so (docs/decisions.md).
        """
        at_s = clock()
        for name in metrics:  # items() takes a microsecond more
            value = metrics[name]
            if type(value) is not float:
                kept = self._keepers.get(type(value), _unknown)(value)
                metrics[name] = kept if type(kept) is float else self._looked_at(name, value, kept)
        self._pending.append((step, at_s, metrics))
        if at_s >= self._due_s:
            self._settle(self._ready())
            self._due_s, self._ask_at = at_s + EVERY_S, len(self._pending) + BATCH

    def close(self) -> None:
        """The loop is over: now it may wait."""
        self._settle(len(self._pending))

    def curves(self, origin_s: float) -> tuple[Curve, ...]:
        """Their seconds count from `origin_s`, a reading of time.perf_counter()."""
        return tuple(
            Curve(
                name=name,
                steps=tuple(steps),
                at_s=tuple(each - origin_s for each in at_s),
                values=tuple(value if math.isfinite(value) else None for value in values),
            )
            for name, (steps, at_s, values) in self._curves.items()
        )

    def _ready(self) -> int:
        """How many of the first rows can be settled without waiting."""
        for count, (_, _, metrics) in enumerate(self._pending):
            for value in metrics.values():
                if type(value) is not float and not value.ready():
                    return count
        return len(self._pending)

    def _settle(self, count: int) -> None:
        pending, curves, settled = self._pending, self._curves, 0
        try:
            for place in range(count):
                step, at_s, metrics = pending[place]
                for name, value in metrics.items():
                    number = metrics[name] = value if type(value) is float else value.value()
                    curve = curves.get(name)
                    if curve is None:
                        curve = curves[name] = (array("q"), array("d"), array("d"))
                    curve[0].append(step)
                    curve[1].append(at_s)
                    curve[2].append(number)
                    if not math.isfinite(number):
                        self.not_finite.setdefault(name, step)
                settled += 1
        finally:
            rows = pending[:settled]
            del pending[:count]
            if rows:
                self._tell(rows)

    def _looked_at(self, name: str, value: Any, kept: object) -> Later | float:
        if isinstance(kept, Later):
            if len(self._pending) >= self._ask_at:
                self._due_s = 0.0
            return kept
        keep = _keeper(value)
        if keep is None:
            raise UsageError(
                f"log({name}=...) takes a number or a one-element array, not {type(value).__name__}.",
                hint="Log its mean, say.",
            )
        found = keep(value)
        if type(value) not in self._keepers:  # remembered once it has worked
            tools = owner(value)
            self._keepers[type(value)] = (tools.reader(type(value)) if tools is not None else None) or keep
        return found


def _unknown(value: Any) -> None:
    """A type that has not been seen yet."""


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
