"""Where a session's next batch comes from: its ring of resident batches, or a loader whose waiting is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from metalmark.backends.base import RING
from metalmark.feeds.source import Arrays
from metalmark.model.plan import Plan
from metalmark.model.workload import Batch, Recipe, Workload

Placed = tuple[tuple[Any, ...], Any]
"""Inputs and targets on the device."""
OpenLoader = Callable[[], AbstractContextManager[Iterator[Arrays]]]


class Feeder:
    """Hands out placed batches. `batch` is the ring's number of the last one; a loader does not change it."""

    def __init__(self, ring: list[Placed], *, place: Callable[[Any], Placed], loader: OpenLoader) -> None:
        self._ring, self._place, self._loader = ring, place, loader
        self._open: AbstractContextManager[Iterator[Arrays]] | None = None
        self._batches: Iterator[Arrays] | None = None
        self.batch = -1
        self.waited_s = 0.0

    def take(self) -> Placed:
        if self._batches is None:
            self.batch = (self.batch + 1) % len(self._ring)
            return self._ring[self.batch]
        begin = time.perf_counter()
        arrays = next(self._batches)
        self.waited_s += time.perf_counter() - begin
        return self._place(arrays)

    def stream(self, on: bool) -> None:
        """Feed from the loader, or from the ring again."""
        if self._open is not None:
            self._batches = None
            self._open.__exit__(None, None, None)
            self._open = None
        if on:
            self._open = self._loader()
            self._batches = self._open.__enter__()


def make_ring(plan: Plan, workload: Workload, recipe: Recipe) -> list[Batch]:
    rng = np.random.default_rng(plan.seed)
    return [recipe.prepare(workload.batch(plan.params, rng)) for _ in range(RING)]
