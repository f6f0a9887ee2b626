"""The batches of one epoch by number: the same whichever thread makes them, and in order whichever is first."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from metalmark.data.catalog import PIXELS, SYNTHETIC, load
from metalmark.data.dataset import Dataset, Positions, Split, order
from metalmark.errors import UnsupportedError
from metalmark.feeds.source import Arrays, find_dataset, made_ahead
from metalmark.model.plan import Plan
from metalmark.model.workload import Recipe, Workload

AHEAD = 2
"""Number of batches made ahead, besides those that are being made."""
LARGE_BYTES = 1 << 20
"""A smaller batch is made faster than a thread hands it over."""
MOST_WORKERS = 4


def dataset_of(workload: Workload, plan: Plan) -> Dataset:
    if workload.sample is None or not workload.datasets:
        raise UnsupportedError(
            f"{workload.name} has no data set, so there is nothing to validate on.",
            hint="Use `metalmark bench` for its speed; a workload of your own names `datasets` and `sample`.",
        )
    if plan.data == SYNTHETIC:
        return load(workload.datasets[0], SYNTHETIC, plan.seed, pixels=int(plan.params.get("pixels", PIXELS)))
    return find_dataset(workload, plan)


@dataclass(frozen=True)
class Samples:
    """One pass over a split: every sample once, in batches of which the last may be short."""

    workload: Workload
    recipe: Recipe
    plan: Plan
    split: Split
    epoch: int | None = None
    """None for validation, which is neither shuffled nor augmented."""

    @cached_property
    def positions(self) -> Positions:
        if self.epoch is None:
            return order(len(self.split), seed=0, shuffle=False)
        return order(len(self.split), seed=self.plan.seed, epoch=self.epoch)

    @property
    def batch_size(self) -> int:
        return int(self.plan.params["batch_size"])

    def __len__(self) -> int:
        return -(-len(self.positions) // self.batch_size)

    def __getitem__(self, number: int) -> Arrays:
        chosen = self.positions[number * self.batch_size : (number + 1) * self.batch_size]
        images, params = self.split.images[chosen], self.plan.params
        if self.epoch is not None and self.workload.augment is not None:
            images = self.workload.augment(params, images, np.random.default_rng([self.plan.seed, self.epoch, number]))
        assert self.workload.sample is not None
        batch = self.recipe.prepare(self.workload.sample(params, images, self.split.labels[chosen]))
        return (*batch.inputs, batch.targets)


def suitable_workers(first: Arrays, cores: int) -> int:
    """Return the number of threads for batches like this one. NumPy and Pillow release the interpreter lock in large
    operations only."""
    large = sum(array.nbytes for array in first) >= LARGE_BYTES
    return max(1, min(MOST_WORKERS, cores - 1)) if large else 0


def in_order(samples: Samples, workers: int) -> AbstractContextManager[Iterator[Arrays]]:
    """Give the batches one after another, made ahead by `workers` threads, or by the caller where there are none."""
    ahead = workers + AHEAD if workers else 0
    return made_ahead(samples.__getitem__, range(len(samples)), workers=max(1, workers), ahead=ahead)
