"""Batches by number, made on demand: what every loader draws from, in this process or in a worker's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metalmark.model.plan import Plan
from metalmark.model.workload import Batch, Recipe, Workload

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
        return _again, (self.plan, self.recipe.prepare, self.workload.origin)


def _again(plan: Plan, prepare: object, origin: str) -> Source:
    from metalmark.feeds.samples import with_data
    from metalmark.workloads.catalog import load

    recipe = Recipe(model=None, loss=_nothing, optimizer=_nothing, prepare=prepare)  # type: ignore[arg-type]
    workload, _ = with_data(load(plan.workload, source=origin), plan)
    return Source(workload, recipe, plan)


def _nothing(*_: object) -> None:
    """A worker process makes batches; it trains nothing."""


def as_batch(arrays: Arrays) -> Batch:
    return Batch(inputs=tuple(arrays[:-1]), targets=arrays[-1])
