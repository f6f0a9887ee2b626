"""What the sessions of all frameworks share: where their batches come from, and a fingerprint of their weights."""

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from metalmark.backends.base import RING
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.feeds.share import share_here
from metalmark.feeds.source import Source, open_batches
from metalmark.machine import cpu
from metalmark.machine.cgroup import limits
from metalmark.model.nest import Layout
from metalmark.model.plan import Loader, Plan, World
from metalmark.model.workload import Recipe, Workload

Placed = tuple[Any, ...]
"""The leaves of a batch's inputs and targets on the device; a session's layout puts them together."""
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


@dataclass(frozen=True)
class ResidentBatches:
    """The batches that a session begins with, as arrays, and the form that all of its batches have."""

    leaves: list[Arrays]
    layout: Layout

    @property
    def shown(self) -> str:
        """What a batch holds: "inputs[0] float32 (32, 64), targets int64 (32,)"."""
        described = zip(self.layout.names, self.leaves[0], strict=True)
        return ", ".join(f"{name} {array.dtype} {tuple(array.shape)}" for name, array in described)


def resident_batches(plan: Plan, workload: Workload, recipe: Recipe) -> ResidentBatches:
    rng = np.random.default_rng(plan.seed)
    made = [leaves_of(recipe.prepare(workload.batch(plan.params, rng))) for _ in range(RING)]
    share = share_here(plan)
    return ResidentBatches([leaves if share is None else share.part(leaves)[0] for leaves, _ in made], made[0][1])


def make_feeder(
    plan: Plan,
    workload: Workload,
    recipe: Recipe,
    batches: ResidentBatches,
    *,
    place: Callable[[Any], Placed],
    loader: Callable[[Source, Loader], OpenBatches],
) -> Feeder:
    """Make the feeder of a session. `place` puts a batch's arrays on the device; `loader` is the framework's own."""
    source, settings = Source(workload, recipe, plan), plan.loader or Loader()
    return Feeder(list(map(place, batches.leaves)), place=place, loader=lambda: open_batches(source, settings, loader))


def fingerprint_of(arrays: Iterable[np.ndarray]) -> tuple[float, ...]:
    """Return one number per array that changes when the array does: a checksum of its bytes, since a mean would stay
    where small changes cancel. NaN for an array that contains a value that is not finite."""
    return tuple(
        float(zlib.crc32(np.ascontiguousarray(array).data)) if np.isfinite(array).all() else math.nan
        for array in arrays
    )


def threads_of(plan: Plan, device_type: str) -> int | None:
    """Return the number of CPU threads to compute with: what the plan says, and else, where processes share the CPU, an
    equal part of its cores; None: what the framework takes."""
    if plan.settings.threads is not None or device_type != "cpu" or not isinstance(plan.world, World):
        return plan.settings.threads
    return cpu.cores_each(limits(), plan.world.nproc)


NO_IMAGES = "this model has no 4-dimensional weight, so there is no image layout to change."


def has_images(dimensions: Iterable[int]) -> bool:
    """Whether one of a model's weights, of so many dimensions each, is a convolution's."""
    return 4 in dimensions


def require_images(dimensions: Iterable[int]) -> None:
    """Refuse --channels-last for a model without convolutions."""
    if not has_images(dimensions):
        raise UnsupportedError(f"--channels-last: {NO_IMAGES}")
