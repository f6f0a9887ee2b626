"""Source: batches by number, made on demand, from synthetic or real samples; what every loader draws from.

`thread_loader` is the loader of frameworks that have none of their own (JAX, MLX).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from metalmark.data.catalog import ACCEPTED, PIXELS, REAL, SYNTHETIC, load
from metalmark.data.dataset import Dataset, Positions
from metalmark.errors import FormatError, UnsupportedError
from metalmark.model.plan import Loader, Plan
from metalmark.model.workload import Batch, Params, Recipe, Workload
from metalmark.workloads import catalog

Arrays = tuple[np.ndarray, ...]
"""The inputs, then the targets: plain arrays, which every loader can carry between processes."""


@dataclass(frozen=True)
class Source:
    """Batch `index` is a function of the seed and the index alone, whoever makes it."""

    workload: Workload
    recipe: Recipe
    plan: Plan

    def __getitem__(self, index: int) -> Arrays:
        rng = np.random.default_rng([self.plan.seed, 1 + index])
        batch = self.recipe.prepare(self.workload.produce(self.plan.params, rng))
        return (*batch.inputs, batch.targets)

    def __reduce__(self) -> tuple[object, ...]:
        """Models do not travel to a worker process; it finds the same workload by its name."""
        return _remade, (self.plan, self.recipe.prepare, self.workload.origin)


def _remade(plan: Plan, prepare: object, origin: str) -> Source:
    recipe = Recipe(model=None, loss=_nothing, optimizer=_nothing, prepare=prepare)  # type: ignore[arg-type]
    workload, _ = with_data(catalog.load(plan.workload, source=origin), plan)
    return Source(workload, recipe, plan)


def _nothing(*_: object) -> None:
    """A worker process makes batches; it trains nothing."""


def thread_loader(source: Source, loader: Loader) -> AbstractContextManager[Iterator[Arrays]]:
    """Yield batches in order, made ahead by threads. With nothing ahead, each is made when it is asked for."""
    return made_ahead(source.__getitem__, count(), workers=max(1, loader.workers), ahead=loader.prefetch)


@contextmanager
def made_ahead(
    make: Callable[[int], Arrays], numbers: Iterable[int], *, workers: int, ahead: int
) -> Iterator[Iterator[Arrays]]:
    """Give the batches of these numbers in order, made by threads; by the caller where `ahead` is 0."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="batches") as pool:
        try:
            yield _in_turn(make, numbers, pool, ahead) if ahead else map(make, numbers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_turn(
    make: Callable[[int], Arrays], numbers: Iterable[int], pool: ThreadPoolExecutor, ahead: int
) -> Iterator[Arrays]:
    pending: deque[Future[Arrays]] = deque()
    for number in numbers:
        pending.append(pool.submit(make, number))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def with_data(workload: Workload, plan: Plan) -> tuple[Workload, str]:
    """Return the workload fed by the plan's data, and what to call that data in a record."""
    if plan.data == SYNTHETIC:
        return workload, SYNTHETIC
    if workload.sample is None or not workload.datasets:
        raise UnsupportedError(
            f"{workload.name} has no data set: it trains on synthetic data.", hint="Use --data synthetic."
        )
    dataset = find_dataset(workload, plan)
    split, sample, augment = dataset.train, workload.sample, workload.augment

    def batch(params: Params, rng: np.random.Generator) -> Batch:
        size = params["batch_size"]
        positions: Positions = np.asarray(rng.choice(len(split), size, replace=size > len(split)), np.intp)
        images = split.images[positions]
        return sample(params, images if augment is None else augment(params, images, rng), split.labels[positions])

    fed = replace(workload, batch=batch)
    object.__setattr__(fed, "origin", workload.origin)
    return fed, f"{dataset.source}, {dataset.digest[:12]}"


def find_dataset(workload: Workload, plan: Plan) -> Dataset:
    pixels = int(plan.params.get("pixels", PIXELS))
    named = workload.datasets[0] if plan.data == REAL else plan.data
    if named in workload.datasets:
        return load(named, REAL, plan.seed, pixels=pixels)
    if plan.data in ACCEPTED:
        raise UnsupportedError(
            f"{workload.name} does not take {plan.data}.", hint=f"It takes: {', '.join(workload.datasets)}."
        )
    # A path may contain any of them; what the first data set says of it is what most users want to read.
    first: FormatError | None = None
    for name in workload.datasets:
        try:
            return load(name, plan.data, plan.seed, pixels=pixels)
        except FormatError as error:
            first = first or error
    assert first is not None
    raise first
