"""The batches of a short training, and the held-out samples that it is judged on."""

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from metalmark.data.dataset import Dataset, Stream
from metalmark.errors import MetalmarkError
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.feeds.source import batch_size_of
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload
from metalmark.parity.base import Subject
from metalmark.training import samples
from metalmark.training.metrics import Tally

HELD_OUT = 512
"""Samples that the accuracy is counted on."""


class Practice:
    """Batches of the workload's data set where it has one, else those that it makes itself."""

    def __init__(self, workload: Workload, plan: Plan, subject: Subject, steps: int) -> None:
        self._workload, self._plan, self._subject, self._steps = workload, plan, subject, steps
        self._dataset = self._find_dataset()

    def batches(self, seed: int) -> Iterator[Arrays]:
        return islice(self._endless(seed), self._steps)

    def accuracy(self) -> tuple[float | None, int]:
        """Return the share of held-out samples that the network gets right, and how many there were."""
        dataset = self._dataset
        if dataset is None or dataset.validation is None or isinstance(dataset.validation, Stream):
            return None, 0
        held_out = samples.limited(dataset, HELD_OUT).validation
        assert held_out is not None
        tally = Tally(self._workload.task, self._subject.recipe.metrics)
        with samples.open_pass(self._workload, self._subject.recipe, self._plan, held_out) as batches:
            for arrays in batches:
                loss, outputs = self._subject.evaluate(arrays)
                parts = self._subject.layout.rebuild(arrays)
                tally.add(loss, outputs, parts["targets"], inputs=parts["inputs"], size=len(arrays[0]))
        found = tally.figures()
        return (None if isinstance(found.accuracy, Absent) else found.accuracy), tally.samples

    def _endless(self, seed: int) -> Iterator[Arrays]:
        plan = msgspec.structs.replace(self._plan, seed=seed)
        if self._dataset is None:
            number = 0
            while True:
                rng = np.random.default_rng([seed, 1 + number])
                yield leaves_of(self._subject.recipe.prepare(self._workload.batch(plan.params, rng)))[0]
                number += 1
        epoch = 1
        while True:
            with samples.open_pass(self._workload, self._subject.recipe, plan, self._dataset.train, epoch) as batches:
                # Captured and compiled steps are made for one size of batch, so a short last one is left out.
                yield from (arrays for arrays in batches if len(arrays[0]) == batch_size_of(self._workload, plan))
            epoch += 1

    def _find_dataset(self) -> Dataset | None:
        try:
            dataset = samples.dataset_of(self._workload, self._plan)
        except MetalmarkError:  # it has none, or only one that would have to be fetched
            return None
        short = not isinstance(dataset.train, Stream) and len(dataset.train) < batch_size_of(self._workload, self._plan)
        return None if short or isinstance(dataset.train, Stream) else dataset
