"""The batches of one epoch: the same whichever thread makes them, and in order whichever is first.

Samples that can be asked for by position are shuffled here; a stream comes in its own order.
"""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from metalmark.data.arrays import MappedSplit
from metalmark.data.catalog import SYNTHETIC
from metalmark.data.dataset import Dataset, Part, Positions, Split, Stream, Subset, order
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.feeds.source import (
    batch_size_of,
    find_dataset,
    finished,
    made_ahead,
    passes_of,
    refuse_shared,
    refuse_workers,
    synthetic_dataset,
)
from metalmark.model.nest import map_leaves
from metalmark.model.plan import Plan
from metalmark.model.workload import Batch, Params, Recipe, Workload

AHEAD = 2
"""Number of batches made ahead, besides those that are being made."""
LARGE_BYTES = 1 << 20
"""A smaller batch is made faster than a thread hands it over."""
MOST_WORKERS = 4


def dataset_of(workload: Workload, plan: Plan) -> Dataset:
    """Return what is trained and validated on."""
    if not workload.datasets and workload.data is None and plan.data == SYNTHETIC:
        raise UnsupportedError(
            f"{workload.name} has no data set, so there is nothing to validate on.",
            hint="Give files: --data PATH; a workload of your own may bring `data`. `metalmark bench` measures it so.",
        )
    if plan.data == SYNTHETIC and workload.datasets:
        return synthetic_dataset(workload, plan)
    dataset = find_dataset(workload, plan, validated=True)
    if isinstance(dataset.train, Stream):
        refuse_shared(dataset.train, plan)
    return dataset


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
        return batch_size_of(self.workload, self.plan)

    def __len__(self) -> int:
        return -(-len(self.positions) // self.batch_size)

    def __getitem__(self, number: int) -> Arrays:
        chosen = self.positions[number * self.batch_size : (number + 1) * self.batch_size]
        return _arrays(self.workload, self.recipe, self.plan, self.split.take(chosen), self.epoch, number)


def count_of(part: Part, workload: Workload, plan: Plan) -> int | None:
    """Return the number of batches of one pass; None of a stream that does not know it."""
    return part.length if isinstance(part, Stream) else -(-len(part) // batch_size_of(workload, plan))


def samples_in(part: Part) -> int | None:
    return part.samples if isinstance(part, Stream) else len(part)


def first_batch(workload: Workload, recipe: Recipe, plan: Plan, part: Part) -> Arrays:
    """Return the first training batch, to see its size and whether it can be made at all."""
    if isinstance(part, Stream):
        return _arrays(workload, recipe, plan, part.first(), 1, 0)
    return Samples(workload, recipe, plan, part, 1)[0]


def open_pass(
    workload: Workload,
    recipe: Recipe,
    plan: Plan,
    part: Part,
    epoch: int | None = None,
    workers: int = 0,
    *,
    first: int = 0,
) -> AbstractContextManager[Iterator[Arrays]]:
    """Give the batches of one pass in order, from number `first` on: made ahead by `workers` threads, or by the caller
    where there are none. A stream makes its own, and those before `first` are made and thrown away."""
    if isinstance(part, Stream):
        return closing(_streamed(workload, recipe, plan, part, epoch, first))
    samples = Samples(workload, recipe, plan, part, epoch)
    ahead = workers + AHEAD if workers else 0
    return made_ahead(samples.__getitem__, range(first, len(samples)), workers=max(1, workers), ahead=ahead)


def suitable_workers(first: Arrays, cores: int) -> int:
    """Return the number of threads for batches like this one. NumPy and Pillow release the interpreter lock in large
    operations only."""
    large = sum(array.nbytes for array in first) >= LARGE_BYTES
    return max(1, min(MOST_WORKERS, cores - 1)) if large else 0


def choose_workers(asked: int | None, part: Part, first: Arrays, cores: int) -> int:
    """Return the number of threads that make batches. Streams have workers of their own, or none; a user's Dataset is
    asked by several threads only where that was said, since it may hold an open file or draw random numbers."""
    if isinstance(part, Stream):
        if asked is not None:
            refuse_workers(part, f"--workers {asked}")
        return 0
    if asked is not None:
        return asked
    whole: Split = part
    while isinstance(whole, Subset):
        whole = whole.whole
    return 0 if isinstance(whole, MappedSplit) else suitable_workers(first, cores)


def light(workload: Workload, dataset: Dataset) -> Workload:
    """Return the workload with batches of one sample: a session keeps two on the device, which only `bench` needs."""
    part = dataset.train

    def batch(params: Params, _: object) -> Batch:
        if isinstance(part, Stream):
            whole = part.first()
            one = Batch(**{name: map_leaves(_first_row, nest) for name, nest in vars(whole).items()})
        else:
            one = part.take(order(1, seed=0))
        return finished(workload, params, one)

    lighter = replace(workload, batch=batch)
    object.__setattr__(lighter, "origin", workload.origin)
    return lighter


def _first_row(array: np.ndarray) -> np.ndarray:
    return array[:1]


def _streamed(
    workload: Workload, recipe: Recipe, plan: Plan, stream: Stream, epoch: int | None, first: int
) -> Generator[Arrays]:
    for number, batch in enumerate(islice(passes_of(stream, epoch or 0), first, None), start=first):
        yield _arrays(workload, recipe, plan, batch, epoch, number)


def _arrays(workload: Workload, recipe: Recipe, plan: Plan, batch: Batch, epoch: int | None, number: int) -> Arrays:
    """Make a step's arrays of the samples as they are in the data."""
    rng = None if epoch is None else np.random.default_rng([plan.seed, epoch, number])
    return leaves_of(recipe.prepare(finished(workload, plan.params, batch, rng)))[0]


def limited(dataset: Dataset, count: int | None) -> Dataset:
    """Return the data with at most so many samples in each part, the same ones whatever the seed. A stream is cut while
    it is read."""
    if count is None:
        return dataset
    train, validation = _fewer(dataset.train, count), dataset.validation
    return replace(dataset, train=train, validation=None if validation is None else _fewer(validation, count))


def _fewer(part: Part, count: int) -> Part:
    if isinstance(part, Stream) or len(part) <= count:
        return part
    # Data is often sorted by class, so that the first ones would be of one.
    return Subset(whole=part, positions=np.sort(order(len(part), seed=0)[:count]))
