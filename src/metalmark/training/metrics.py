"""Validation figures over all samples, each counted once however the batches fell."""

from __future__ import annotations

import math

import numpy as np

from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.model.run import Absent

TOP = 5


class Tally:
    """Sums over batches of any size."""

    def __init__(self) -> None:
        self.samples = 0
        self._loss = 0.0
        self._right = self._near = 0
        self._classes = 0

    def add(self, mean_loss: float, outputs: np.ndarray, targets: np.ndarray) -> None:
        if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
            raise UnsupportedError(
                f"Accuracy needs a score for each class and one class a sample; outputs are {outputs.shape}, "
                f"targets {targets.shape}.",
                hint="`metalmark bench` measures this workload; `train` is for classification.",
            )
        ranks = _ranks(outputs, targets)
        self.samples += len(targets)
        # A batch's loss is a mean: without its size a short last batch would weigh as much as a full one.
        self._loss += mean_loss * len(targets)
        self._right += int((ranks == 0).sum())
        self._near += int((ranks < TOP).sum())
        self._classes = outputs.shape[1]

    @property
    def loss(self) -> float:
        loss = self._loss / self.samples
        if not math.isfinite(loss):
            raise WrongResultError(
                f"The validation loss is {loss}.",
                hint="The weights or the validation data hold values that are not finite; see the training loss.",
            )
        return loss

    @property
    def accuracy(self) -> float:
        return self._right / self.samples

    @property
    def top5(self) -> float | Absent:
        if self._classes <= TOP:
            return Absent(f"there are {self._classes} classes: one of the first {TOP} is always right")
        return self._near / self.samples


def _ranks(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """How many classes each sample's own one stands behind; of equal scores the lower class is first, as in argmax."""
    own = np.take_along_axis(outputs, targets[:, np.newaxis].astype(np.intp), axis=1)
    earlier = np.arange(outputs.shape[1]) < targets[:, np.newaxis]
    return np.asarray(((outputs > own) | ((outputs == own) & earlier)).sum(axis=1))
