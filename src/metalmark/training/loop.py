"""The training loop: epochs, validation, checkpoints, when to stop. It knows no framework."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from metalmark.data.dataset import Dataset
from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.feeds.source import Arrays
from metalmark.model.plan import Dtype, Plan
from metalmark.model.run import Absent
from metalmark.model.training import Ending, Epoch
from metalmark.model.workload import Workload
from metalmark.training import samples
from metalmark.training.base import Trainer
from metalmark.training.derived import best, ending
from metalmark.training.folder import BEST, LAST, Checkpoint, Request, load_checkpoint, save_checkpoint, share_file

READ_EVERY_S = 0.5
"""Reading a loss waits for the device; twice a second costs a thousandth and still finds a NaN soon."""
MOST_PENDING = 1000
TOP = 5


class Teller(Protocol):
    """What the loop tells about its progress."""

    def losses(self, *, epoch: int, step: int, done: float, losses: list[float]) -> None: ...
    def validating(self, *, epoch: int, done: float) -> None: ...
    def ended(self, epoch: Epoch, step: int) -> None: ...


class Loop:
    def __init__(
        self,
        trainer: Trainer,
        workload: Workload,
        plan: Plan,
        dataset: Dataset,
        request: Request,
        *,
        folder: Path,
        session: int,
        workers: int,
        tell: Teller,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`now` counts from the start of this process, as telemetry does."""
        self._trainer, self._workload, self._plan, self._dataset = trainer, workload, plan, dataset
        self._request, self._folder, self._session, self._workers = request, folder, session, workers
        self._tell, self._now = tell, now
        self._sizes: set[int] = set()
        self._checkpoint_s = 0.0
        self._step = 0

    def resume(self) -> list[Epoch]:
        """Load the state of the last checkpoint, and return its epochs; none where there is no checkpoint."""
        path = self._folder / LAST
        if not path.exists():
            return []
        found, state = load_checkpoint(path)
        if found.data_digest != self._dataset.digest or found.framework != self._plan.framework:
            raise UnsupportedError(
                f"{LAST} was trained on other data or another framework ({found.framework}).",
                hint="Give the data it was trained on, or begin again in another --out.",
            )
        self._trainer.load_state(state)
        self._step = sum(epoch.steps for epoch in found.epochs)
        return list(found.epochs)

    def run(self) -> Ending:
        epochs = self.resume()
        while (end := ending(epochs, self._request.goal)) is None:
            epochs.append(self._epoch(len(epochs) + 1))
            self._save(epochs)
            # Told after it is on the disk: what a reader has seen, a resumed training has too.
            self._tell.ended(epochs[-1], self._step)
        return end

    def _epoch(self, number: int) -> Epoch:
        trainer, clock = self._trainer, time.perf_counter
        passes = samples.Samples(self._workload, trainer.recipe, self._plan, self._dataset.train, number)
        losses = LossReader(trainer, passes, number, self._step, self._tell)
        input_s = first_s = 0.0
        first_samples = 0
        trainer.synchronize()
        begin_s, begin = self._now(), clock()
        with samples.in_order(passes, self._workers) as batches:
            while True:
                asked = clock()
                arrays = next(batches, None)
                if arrays is None:
                    break
                got = clock()
                input_s += got - asked
                size = len(arrays[-1])
                if size in self._sizes:
                    losses.add(trainer.train_batch(arrays), size)
                else:
                    first_s += self._first(arrays, losses)
                    first_samples += size
        losses.read()
        trainer.synchronize()
        trained = clock()
        tally = self._validate(number)
        validated = clock()
        self._step += len(losses.values)
        return Epoch(
            number=number, session=self._session, begin_s=begin_s, end_s=self._now(), samples=sum(losses.sizes),
            steps=len(losses.values), losses=tuple(losses.values),
            train_loss=float(np.average(losses.values, weights=losses.sizes)), validation_loss=tally.loss,
            accuracy=tally.accuracy, top5=tally.top5, validation_samples=tally.samples,
            learning_rate=trainer.learning_rate(), input_s=input_s, compute_s=max(0.0, trained - begin - input_s),
            first_steps_s=first_s, first_steps_samples=first_samples, validation_s=validated - trained,
            checkpoint_s=self._checkpoint_s,
        )  # fmt: skip

    def _first(self, arrays: Arrays, losses: "LossReader") -> float:
        """Time the first step of a batch size by itself: it traces, compiles and allocates."""
        self._trainer.synchronize()
        begin = time.perf_counter()
        loss = self._trainer.train_batch(arrays)
        self._trainer.synchronize()
        elapsed_s = time.perf_counter() - begin
        self._sizes.add(len(arrays[-1]))
        losses.add(loss, len(arrays[-1]))
        return elapsed_s

    def _validate(self, number: int) -> "Tally":
        passes = samples.Samples(self._workload, self._trainer.recipe, self._plan, self._dataset.validation)
        tally = Tally()
        with samples.in_order(passes, self._workers) as batches:
            for count, arrays in enumerate(batches, start=1):
                tally.add(*self._trainer.evaluate(arrays), arrays[-1])
                self._tell.validating(epoch=number, done=count / len(passes))
        return tally

    def _save(self, epochs: list[Epoch]) -> None:
        begin = time.perf_counter()
        what = Checkpoint(
            training=self._request.id,
            framework=self._plan.framework,
            data_digest=self._dataset.digest,
            epochs=tuple(epochs),
        )
        if best(epochs) is epochs[-1]:
            # The best first: were it the other way round, a kill between the two would lose the best for good.
            save_checkpoint(self._folder / BEST, what, self._trainer.state())
            share_file(self._folder / BEST, self._folder / LAST)
        else:
            save_checkpoint(self._folder / LAST, what, self._trainer.state())
        self._checkpoint_s = time.perf_counter() - begin


class LossReader:
    """An epoch's losses: kept as the framework gives them, read now and then, each checked."""

    def __init__(self, trainer: Trainer, passes: samples.Samples, epoch: int, before: int, tell: Teller) -> None:
        self._trainer, self._passes, self._epoch, self._before, self._tell = trainer, passes, epoch, before, tell
        self._pending: list[Any] = []
        self._read_s = time.perf_counter()
        self.values: list[float] = []
        self.sizes: list[int] = []

    def add(self, loss: Any, size: int) -> None:
        self._pending.append(loss)
        self.sizes.append(size)
        if len(self._pending) >= MOST_PENDING or time.perf_counter() - self._read_s >= READ_EVERY_S:
            self.read()

    def read(self) -> None:
        """Read the losses that are pending."""
        values = self._trainer.read(self._pending) if self._pending else []
        self._pending.clear()
        for value in values:
            if not math.isfinite(value):
                raise self._not_finite(value)
            self.values.append(value)
        done = len(self.values)
        self._tell.losses(epoch=self._epoch, step=self._before + done, done=done / len(self._passes), losses=values)
        self._read_s = time.perf_counter()

    def _not_finite(self, value: float) -> WrongResultError:
        number = len(self.values)
        inputs = self._passes[number][:-1]
        clean = all(np.isfinite(array).all() for array in inputs)
        before = f"the loss before it was {self.values[-1]:.4g}" if self.values else "it is the epoch's first"
        dtype = self._passes.plan.settings.dtype
        causes = [
            "the learning rate (a loss that grows before it breaks is too high a rate)"
            if clean
            else "the data: the inputs of that step's batch are not finite",
        ]
        if dtype is not Dtype.FLOAT32:
            causes.append(f"--dtype {dtype.value} (does float32 train?)")
        causes += ["a log, a division or a square root in the loss that can meet 0", "labels beyond the last class"]
        return WrongResultError(
            f"The training loss is {value} at step {self._before + number + 1:,} (epoch {self._epoch}, "
            f"step {number + 1:,} of {len(self._passes):,}); {before}.",
            hint=f"Look at: {'; '.join(causes)}. {LAST} holds the epoch before, if there was one.",
        )


class Tally:
    """Validation figures over all samples, each counted once however they fell into batches."""

    def __init__(self) -> None:
        self.samples = 0
        self._loss = 0.0
        self._right = self._near = 0
        self._classes = 0

    def add(self, mean_loss: float, outputs: np.ndarray, targets: np.ndarray) -> None:
        if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
            raise UnsupportedError(
                f"Accuracy needs a score for each class and one class per sample; outputs are {outputs.shape}, "
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
    """Return how many classes rank before each sample's own; of equal scores the lower class is first, as in argmax."""
    own = np.take_along_axis(outputs, targets[:, np.newaxis].astype(np.intp), axis=1)
    earlier = np.arange(outputs.shape[1]) < targets[:, np.newaxis]
    return np.asarray(((outputs > own) | ((outputs == own) & earlier)).sum(axis=1))
