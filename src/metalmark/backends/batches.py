"""The ring of resident batches every backend steps through, made from the plan's seed."""

from __future__ import annotations

import numpy as np

from metalmark.backends.base import RING
from metalmark.plan import Plan
from metalmark.workload import Batch, Recipe, Workload


def make_ring(plan: Plan, workload: Workload, recipe: Recipe) -> list[Batch]:
    rng = np.random.default_rng(plan.seed)
    return [recipe.prepare(workload.batch(plan.params, rng)) for _ in range(RING)]
