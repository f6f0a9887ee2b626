"""The training loop: epochs, validation, checkpoints, when to stop. It knows no framework."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from metalmark.backends.ranks import ONE, Ranks, agreed
from metalmark.data.dataset import Dataset, Part, Stream
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.training import Ending, Epoch, RankEpoch
from metalmark.model.workload import Task, Workload
from metalmark.training import samples
from metalmark.training.base import State, Trainer
from metalmark.training.derived import best, ending
from metalmark.training.folder import (
    BEST,
    CHECKPOINT_SCHEMA,
    LAST,
    WHOLE_EPOCHS,
    Checkpoint,
    PartialEpoch,
    Request,
    load_checkpoint,
    save_checkpoint,
    share_file,
)
from metalmark.training.generators import PREFIX, generator_state, load_generators, seed_generators
from metalmark.training.losses import LossReader, Teller, parts_of
from metalmark.training.metrics import Figures, Tally
from metalmark.training.running_epoch import RunningEpoch

BEGIN = "begin."
"""Leads the names of generators as they were when an epoch began, in a checkpoint within it."""
NOT_VALIDATED = "the recipe has a step of its own and neither `loss`, `validate` nor `metrics`, so nothing is validated"
VALIDATED_BY_THE_FIRST = "the first process validates"
NOTHING_TO_VALIDATE = "there are no samples to validate on"


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
        ranks: Ranks = ONE,
    ) -> None:
        """`now` counts from the start of this process, as telemetry does. `ranks`: the processes that train together.
        The first of them validates, writes checkpoints and decides when to stop."""
        self._trainer, self._workload, self._plan, self._dataset = trainer, workload, plan, dataset
        self._request, self._folder, self._session, self._workers = request, folder, session, workers
        self._tell, self._now, self._ranks = tell, now, ranks
        self._sizes: set[int] = set()
        self._state: State = {}
        """A checkpoint's, while the epoch in whose middle it was written is opened."""
        self._checkpoint_s = 0.0
        self._step = 0

    def check(self, first: Arrays) -> Task | None:
        """Evaluate one batch before anything is trained: a metric that fails, a task that does not fit or a target
        that nothing measures is told now, not after the first epoch. Return what the network is taken to learn."""
        if self._unvalidated:
            known = {"train_loss"}
            tally = Tally(self._workload.task, self._trainer.recipe.metrics)
        else:
            tally = self._new_tally()
            self._count(tally, first)
            figures = tally.figures()
            named = {"val_loss": figures.loss, "accuracy": figures.accuracy, "top5": figures.top5}
            known = {"train_loss", *figures.metrics, *self._trainer.recipe.metrics}
            known |= {name for name, value in named.items() if not isinstance(value, Absent)}
            if tally.task is Task.LANGUAGE:
                known.add("perplexity")
        goal = self._request.goal
        for flag, metric in (("--target", goal.wanted), ("--monitor", goal.monitor)):
            if metric is not None and metric.name not in known:
                why = tally.figures().accuracy if metric.name == "accuracy" else None
                reason = f": {why.reason}" if isinstance(why, Absent) and not self._unvalidated else ""
                raise UnsupportedError(
                    f"{flag} {metric.name}: this training has no {metric.name}{reason}.",
                    hint=f"It has: {', '.join(sorted(known))}. Your own come from Recipe(metrics={{...}}).",
                )
        return tally.task

    def resume(self) -> tuple[list[Epoch], PartialEpoch | None]:
        """Load the state of the last checkpoint, and return its epochs; none where there is no checkpoint."""
        path = self._folder / LAST
        if not path.exists():
            return [], None
        found, state = load_checkpoint(path)
        if found.data_digest != self._dataset.digest or found.framework != self._plan.framework:
            raise UnsupportedError(
                f"{LAST} was trained on other data or another framework ({found.framework}).",
                hint="Give the data it was trained on, or begin again in another --out.",
            )
        self._state = state
        self._load(state)
        self._step = sum(epoch.steps for epoch in found.epochs)
        return list(found.epochs), found.partial

    def run(self) -> Ending:
        epochs, partial = self.resume()
        while (end := self._agreed_ending(epochs)) is None:
            epochs.append(self._epoch(epochs, partial))
            partial = None
            self._save(epochs)
            # Told after it is on the disk: what a reader has seen, a resumed training has too.
            self._tell.ended(epochs[-1], self._step)
        return end

    def _agreed_ending(self, epochs: list[Epoch]) -> Ending | None:
        """Return whether and why it is over, as the first process finds: only that one has validated."""
        endings: list[Ending | None] = [None, *Ending]
        return endings[int(agreed(self._ranks, endings.index(ending(epochs, self._request.goal))))]

    def _epoch(self, epochs: list[Epoch], partial: PartialEpoch | None) -> Epoch:
        number, trainer, clock = len(epochs) + 1, self._trainer, time.perf_counter
        losses = LossReader(
            trainer, number, self._step, self._tell, total=self.count(self._dataset.train),
            dtype=self._plan.settings.dtype, made_again=self._made_again(number),
        )  # fmt: skip
        running = RunningEpoch(
            number, trainer, losses, session=self._session, now=self._now, checkpoint_s=self._checkpoint_s,
            partial=partial,
        )  # fmt: skip
        every = self._request.checkpoint_every
        saved_at, saved_steps = clock(), len(losses.sizes)
        with self._batches(running) as batches:
            running.begin()
            while not self._is_over(losses):
                asked = clock()
                arrays = next(batches, None)
                got = clock()
                running.input_s += got - asked
                if arrays is None:
                    break
                size = _size(arrays)
                if size in self._sizes:
                    losses.add(trainer.train_batch(arrays), size)
                else:
                    self._first(arrays, running)
                # The end of an epoch has a checkpoint of its own.
                if every is None or self._is_over(losses) or len(losses.sizes) == losses.total:
                    continue
                if every.is_due(elapsed_s=clock() - saved_at, steps=len(losses.sizes) - saved_steps):
                    running.pause()
                    running.checkpoint_s += self._save_within(epochs, running)
                    self._tell.saved(epoch=number, step=self._step + len(losses.values))
                    running.go_on()
                    saved_at, saved_steps = clock(), len(losses.sizes)
        running.pause()
        if not losses.values:
            raise UnsupportedError(
                f"Epoch {number} has no batch to train on.",
                hint="An iterable that is used up gives nothing in the next epoch: return a function that opens it.",
            )
        before = clock()
        figures = self._validate(number)
        validated = clock()
        self._step += len(losses.values)
        return Epoch(
            number=number, session=self._session, begin_s=running.begin_s, end_s=self._now(),
            earlier=running.earlier, samples=losses.samples, steps=len(losses.values), losses=tuple(losses.values),
            train_loss=float(np.average(losses.values, weights=losses.sizes)), validation_loss=figures.loss,
            accuracy=figures.accuracy, top5=figures.top5, metrics=figures.metrics, validation_samples=figures.samples,
            learning_rate=trainer.learning_rate(), input_s=running.input_s, compute_s=running.compute_s,
            first_steps_s=running.first_s, first_steps_samples=running.first_samples, validation_s=validated - before,
            checkpoint_s=running.checkpoint_s, ranks=self._rank_epochs(running),
        )  # fmt: skip

    def _rank_epochs(self, running: "RunningEpoch") -> tuple[RankEpoch, ...] | UnsetType:
        """Return the times of all processes. All must call it."""
        if self._ranks.count == 1:
            return UNSET
        rows = self._ranks.gather([running.input_s, running.compute_s])
        return tuple(RankEpoch(number=number, input_s=row[0], compute_s=row[1]) for number, row in enumerate(rows))

    @contextmanager
    def _batches(self, running: "RunningEpoch") -> Iterator[Iterator[Arrays]]:
        """Open the epoch's pass, behind the steps that are done."""
        part, done = self._dataset.train, len(running.losses.sizes)
        state = self._state if done else None
        if isinstance(part, Stream):
            if state is not None:
                # Its order may hang on the generators as they were when the epoch began.
                begin = {name.removeprefix(BEGIN): array for name, array in state.items() if name.startswith(BEGIN)}
                self._load({**state, **begin})
            if self._request.checkpoint_every is not None:
                running.begin_state = _generators_of(self._trainer.state())
        seed_generators(self._plan.seed, running.number)
        # A stream gives what lies behind once more; that is not kept, and what it drew is undone.
        first = 0 if isinstance(part, Stream) else done
        opened = samples.open_pass(
            self._workload, self._trainer.recipe, self._plan, part, running.number, self._workers, first=first
        )
        with opened as batches:
            for _ in range(done - first):
                next(batches, None)
            if state is not None:
                self._load(state)
                self._state = {}
            yield batches

    def _first(self, arrays: Arrays, running: "RunningEpoch") -> None:
        """Time the first step of a batch size by itself: it traces, compiles and allocates."""
        self._trainer.synchronize()
        begin = time.perf_counter()
        loss = self._trainer.train_batch(arrays)
        self._trainer.synchronize()
        running.first_s += time.perf_counter() - begin
        running.first_samples += _size(arrays)
        self._sizes.add(_size(arrays))
        running.losses.add(loss, _size(arrays))

    def _is_over(self, losses: "LossReader") -> bool:
        goal, train = self._request.goal, self._dataset.train
        if goal.limit_steps is not None and len(losses.sizes) >= goal.limit_steps:
            return True
        limit = goal.limit_samples if isinstance(train, Stream) else None
        return limit is not None and losses.samples >= limit

    @property
    def _unvalidated(self) -> str:
        """Why nothing is validated; empty where it is."""
        recipe = self._trainer.recipe
        if recipe.step is not None and recipe.loss is None and recipe.validate is None and not recipe.metrics:
            return NOT_VALIDATED
        return NOTHING_TO_VALIDATE if self._dataset.validation is None else ""

    def _validate(self, number: int) -> Figures:
        part, tally = self._dataset.validation, self._new_tally()
        if part is None or self._unvalidated or self._ranks.number:
            unknown = Absent(self._unvalidated or VALIDATED_BY_THE_FIRST)
            return Figures(unknown, unknown, unknown, {}, 0)
        total, goal = self.count(part), self._request.goal
        opened = samples.open_pass(self._workload, self._trainer.recipe, self._plan, part, None, self._workers)
        with opened as batches:
            for count, arrays in enumerate(batches, start=1):
                self._count(tally, arrays)
                self._tell.validating(epoch=number, done=count / total if total else None)
                if isinstance(part, Stream) and (
                    (part.length is None and count == goal.limit_steps)
                    or (goal.limit_samples is not None and tally.samples >= goal.limit_samples)
                ):
                    break
        if not tally.samples:
            raise UnsupportedError(
                f"There is no batch to validate on after epoch {number}.",
                hint="An iterable that is used up gives nothing the next time: return a function that opens it.",
            )
        return tally.figures()

    def _new_tally(self) -> Tally:
        return Tally(self._workload.task, self._trainer.recipe.metrics)

    def _count(self, tally: Tally, arrays: Arrays) -> None:
        loss, outputs = self._trainer.evaluate(arrays)
        inputs, targets = parts_of(self._trainer, arrays)
        tally.add(loss, outputs, targets, inputs=inputs, size=_size(arrays))

    def count(self, part: Part) -> int | None:
        """Return the number of batches of a pass; None where it is not known."""
        goal, found = self._request.goal, samples.count_of(part, self._workload, self._plan)
        if isinstance(part, Stream) and goal.limit_samples is not None:
            found = None
        if part is self._dataset.train and goal.limit_steps is not None:
            return goal.limit_steps if found is None else min(found, goal.limit_steps)
        return found

    def _load(self, state: State) -> None:
        of_loop = (PREFIX, BEGIN)
        self._trainer.load_state({name: array for name, array in state.items() if not name.startswith(of_loop)})
        if f"{PREFIX}python" in state:
            load_generators(state)

    def _save(self, epochs: list[Epoch]) -> None:
        if self._ranks.number:
            return
        begin = time.perf_counter()
        what = self._checkpoint(epochs, schema=WHOLE_EPOCHS)
        if best(epochs, self._request.goal.monitor) is epochs[-1]:
            # The best first: were it the other way round, a kill between the two would lose the best for good.
            save_checkpoint(self._folder / BEST, what, self._trainer.state())
            share_file(self._folder / BEST, self._folder / LAST)
        else:
            save_checkpoint(self._folder / LAST, what, self._trainer.state())
        self._checkpoint_s = time.perf_counter() - begin

    def _save_within(self, epochs: list[Epoch], running: "RunningEpoch") -> float:
        """Write where an epoch is, and return how many seconds that took."""
        if self._ranks.number:
            return 0.0
        begin = time.perf_counter()
        what = self._checkpoint(epochs, schema=CHECKPOINT_SCHEMA, partial=running.partial())
        kept = {f"{BEGIN}{name}": array for name, array in running.begin_state.items()}
        save_checkpoint(self._folder / LAST, what, {**self._trainer.state(), **generator_state(), **kept})
        return time.perf_counter() - begin

    def _checkpoint(self, epochs: list[Epoch], *, schema: int, partial: PartialEpoch | None = None) -> Checkpoint:
        return Checkpoint(
            schema=schema, training=self._request.id, framework=self._plan.framework,
            data_digest=self._dataset.digest, epochs=tuple(epochs), partial=partial,
        )  # fmt: skip

    def _made_again(self, epoch: int) -> Callable[[int], Arrays] | None:
        """Return what makes a batch of this epoch once more, to look at; a stream can't."""
        train = self._dataset.train
        if isinstance(train, Stream):
            return None
        return samples.Samples(self._workload, self._trainer.recipe, self._plan, train, epoch).__getitem__


def _size(arrays: Arrays) -> int:
    """Return the number of samples: the first axis of the first array counts them."""
    return len(arrays[0]) if arrays[0].ndim else 1


def _generators_of(state: State) -> State:
    return {name: array for name, array in state.items() if name.startswith("random.")}
