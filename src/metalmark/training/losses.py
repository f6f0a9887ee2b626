"""LossReader: the losses of an epoch, kept as the framework gives them, read now and then, each checked."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from metalmark.errors import WrongResultError
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import flatten
from metalmark.model.plan import Dtype
from metalmark.model.training import Epoch
from metalmark.training.base import Trainer
from metalmark.training.folder import (
    LAST,
)

READ_EVERY_S = 0.5
"""Reading a loss waits for the device; twice a second costs a thousandth and still finds a NaN soon."""
MOST_PENDING = 1000


class Teller(Protocol):
    """What the loop tells about its progress. `done` is a share; None where the length of a pass is not known."""

    def losses(self, *, epoch: int, step: int, done: float | None, losses: list[float]) -> None: ...
    def validating(self, *, epoch: int, done: float | None) -> None: ...
    def saved(self, *, epoch: int, step: int) -> None: ...
    def ended(self, epoch: Epoch, step: int) -> None: ...


class LossReader:
    """An epoch's losses: kept as the framework gives them, read now and then, each checked."""

    def __init__(
        self,
        trainer: Trainer,
        epoch: int,
        before: int,
        tell: Teller,
        *,
        total: int | None,
        dtype: Dtype,
        made_again: Callable[[int], Arrays] | None,
    ) -> None:
        """`before`: the steps of all epochs before. `total`: the steps of this one, where that is known."""
        self._trainer, self._epoch, self._before, self._tell = trainer, epoch, before, tell
        self.total, self._dtype, self._made_again = total, dtype, made_again
        self._pending: list[Any] = []
        self._read_s = time.perf_counter()
        self.values: list[float] = []
        self.sizes: list[int] = []
        self.samples = 0

    def go_on_after(self, values: tuple[float, ...], sizes: tuple[int, ...]) -> None:
        """Begin behind the steps of a checkpoint, and tell them again: a tracker may not have had them all."""
        self.sizes += sizes
        self.samples += sum(sizes)
        for begin in range(0, len(values), MOST_PENDING):
            self._keep(list(values[begin : begin + MOST_PENDING]))

    def add(self, loss: Any, size: int) -> None:
        self._pending.append(loss)
        self.sizes.append(size)
        self.samples += size
        if len(self._pending) >= MOST_PENDING or time.perf_counter() - self._read_s >= READ_EVERY_S:
            self.read()

    def read(self) -> None:
        """Read the losses that are pending."""
        values = self._trainer.read(self._pending) if self._pending else []
        self._pending.clear()
        self._keep(values)
        self._read_s = time.perf_counter()

    def _keep(self, values: list[float]) -> None:
        for value in values:
            if not math.isfinite(value):
                raise self._not_finite(value)
            self.values.append(value)
        done = len(self.values)
        share = min(1.0, done / self.total) if self.total else None
        self._tell.losses(epoch=self._epoch, step=self._before + done, done=share, losses=values)

    def _not_finite(self, value: float) -> WrongResultError:
        number = len(self.values)
        before = f"the loss before it was {self.values[-1]:.4g}" if self.values else "it is the epoch's first"
        causes = ["the learning rate (a loss that grows before it breaks is too high a rate)"]
        if self._made_again is not None:
            inputs, targets = parts_of(self._trainer, self._made_again(number))
            broken = [name for name, part in (("inputs", inputs), ("targets", targets)) if not _finite(part)]
            if broken:
                causes = [f"the data: the {' and '.join(broken)} of that step's batch are not finite"]
        if self._dtype is not Dtype.FLOAT32:
            causes.append(f"--dtype {self._dtype.value} (does float32 train?)")
        causes += ["a log, a division or a square root in the loss that can meet 0", "labels beyond the last class"]
        of = f" of {self.total:,}" if self.total else ""
        return WrongResultError(
            f"The training loss is {value} at step {self._before + number + 1:,} (epoch {self._epoch}, "
            f"step {number + 1:,}{of}); {before}.",
            hint=f"Look at: {'; '.join(causes)}. {LAST} holds the last checkpoint before, if there was one.",
        )


def parts_of(trainer: Trainer, arrays: Arrays) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch as the nests they were."""
    batch = trainer.layout.rebuild(arrays)
    return batch["inputs"], batch["targets"]


def _finite(nest: Any) -> bool:
    return all(np.isfinite(array).all() for array in flatten(nest)[0])
