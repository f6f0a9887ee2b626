"""What the sessions of all frameworks share: where their batches come from, and a fingerprint of their weights."""

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from metalmark.backends.base import RING
from metalmark.errors import UnsupportedError
from metalmark.feeds.source import Arrays, Source
from metalmark.model.plan import Loader, Plan
from metalmark.model.workload import Recipe, Workload

Placed = tuple[tuple[Any, ...], Any]
"""Inputs and targets on the device."""
OpenBatches = AbstractContextManager[Iterator[Arrays]]


class Feeder:
    """Hands out placed batches: from its ring of resident batches, or from a loader whose waiting is counted.

    `batch` is the number in the ring of the last one; a loader does not change it.
    """

    def __init__(
        self, ring: list[Placed], *, place: Callable[[Any], Placed], loader: Callable[[], OpenBatches]
    ) -> None:
        self.ring, self.place, self._loader = ring, place, loader
        self._open: OpenBatches | None = None
        self._batches: Iterator[Arrays] | None = None
        self.batch = -1
        self.waited_s = 0.0

    def take(self) -> Placed:
        if self._batches is None:
            self.batch = (self.batch + 1) % len(self.ring)
            return self.ring[self.batch]
        begin = time.perf_counter()
        arrays = next(self._batches)
        self.waited_s += time.perf_counter() - begin
        return self.place(arrays)

    def stream(self, on: bool) -> None:
        """Feed from the loader, or from the ring again."""
        if self._open is not None:
            self._batches = None
            self._open.__exit__(None, None, None)
            self._open = None
        if on:
            self._open = self._loader()
            self._batches = self._open.__enter__()


def make_feeder(
    plan: Plan,
    workload: Workload,
    recipe: Recipe,
    *,
    place: Callable[[Any], Placed],
    loader: Callable[[Source, Loader], OpenBatches],
) -> Feeder:
    """Make the feeder of a session. `place` puts a batch's arrays, targets last, on the device; `loader` is the
    framework's own."""
    rng = np.random.default_rng(plan.seed)
    batches = [recipe.prepare(workload.batch(plan.params, rng)) for _ in range(RING)]
    ring = [place((*batch.inputs, batch.targets)) for batch in batches]
    source, settings = Source(workload, recipe, plan), plan.loader or Loader()
    return Feeder(ring, place=place, loader=lambda: loader(source, settings))


def fingerprint_of(arrays: Iterable[np.ndarray]) -> tuple[float, ...]:
    """Return one number per array that changes when the array does: a checksum of its bytes, since a mean would stay
    where small changes cancel. NaN for an array that contains a value that is not finite."""
    return tuple(
        float(zlib.crc32(np.ascontiguousarray(array).data)) if np.isfinite(array).all() else math.nan
        for array in arrays
    )


def require_images(dimensions: Iterable[int]) -> None:
    """Refuse --channels-last for a model none of whose weights, of so many dimensions each, is a convolution's."""
    if 4 not in dimensions:
        raise UnsupportedError(
            "--channels-last: this model has no 4-dimensional weight, so there is no image layout to change."
        )
