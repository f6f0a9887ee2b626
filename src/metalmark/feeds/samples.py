"""Real samples in place of synthetic ones: the same workload, its batches drawn from a data set's training split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metalmark.data.catalog import ACCEPTED, PIXELS, REAL, SYNTHETIC, load
from metalmark.data.split import Dataset, Positions
from metalmark.errors import FormatError, UnsupportedError
from metalmark.model.plan import Plan
from metalmark.model.workload import Batch, Params, Workload


def with_data(workload: Workload, plan: Plan) -> tuple[Workload, str]:
    """The workload fed by the plan's data, and what to call that data in a record."""
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
    if plan.data == REAL:
        return load(workload.datasets[0], REAL, plan.seed, pixels=pixels)
    if plan.data in workload.datasets:
        return load(plan.data, REAL, plan.seed, pixels=pixels)
    if plan.data in ACCEPTED:
        raise UnsupportedError(
            f"{workload.name} does not take {plan.data}.", hint=f"It takes: {', '.join(workload.datasets)}."
        )
    # A path may hold any of them; what the first one says of it is what most users want to read.
    first: FormatError | None = None
    for name in workload.datasets:
        try:
            return load(name, plan.data, plan.seed, pixels=pixels)
        except FormatError as error:
            first = first or error
    assert first is not None
    raise first
