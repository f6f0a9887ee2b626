"""The loop with a trainer that keeps what it was given: what is trained on, what is validated, when it stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from metalmark.data.dataset import Dataset, Stream
from metalmark.errors import UnsupportedError, WrongResultError
from metalmark.model.run import Absent
from metalmark.model.training import Ending, Goal, Metric, Target
from metalmark.model.workload import Batch, Recipe
from metalmark.training import losses
from metalmark.training.derived import best, samples_s
from metalmark.training.folder import CheckpointInterval, load_checkpoint
from tests.training.files import dataset
from tests.training.stub import RECIPE, StubTrainer, Told, loop, workload

SHAPE = (3, 3, 1)


def rows(seen: list[tuple[np.ndarray, ...]]) -> list[bytes]:
    return [row.tobytes() for inputs, _ in seen for row in inputs]


@pytest.mark.parametrize("workers", [0, 3])
def test_each_epoch_trains_on_every_training_sample_and_never_on_validation(tmp_path: Path, workers: int) -> None:
    data, trainer, told = dataset(SHAPE), StubTrainer(), Told()
    assert loop(trainer, data, tmp_path, told, workers=workers).run() is Ending.EPOCHS
    own = [image.reshape(-1).tobytes() for image in np.asarray(data.train.images)]
    others = [image.reshape(-1).tobytes() for image in np.asarray(data.validation.images)]
    trained, half = rows(trainer.trained), 22
    assert not set(own) & set(others)
    assert sorted(trained[:half]) == sorted(trained[half:]) == sorted(own)
    assert trained[:half] != trained[half:], "another order each epoch"
    assert rows(trainer.evaluated) == others * 2, "in order, each once an epoch"
    assert [len(targets) for _, targets in trainer.trained[:6]] == [4, 4, 4, 4, 4, 2]


def test_only_training_images_are_augmented_and_always_alike(tmp_path: Path) -> None:
    work = workload(lambda _, images, rng: images * 0 + rng.integers(1, 255, images.shape, np.uint8))
    data, seen = dataset(SHAPE), []
    for number in range(2):
        trainer = StubTrainer()
        loop(trainer, data, tmp_path / str(number) if number else tmp_path, Told(), work=work, workers=number).run()
        originals = {image.reshape(-1).tobytes() for image in np.asarray(data.train.images)}
        assert not originals & set(rows(trainer.trained))
        assert rows(trainer.evaluated)[:13] == [i.reshape(-1).tobytes() for i in np.asarray(data.validation.images)]
        seen.append(rows(trainer.trained))
        (tmp_path / "1").mkdir(exist_ok=True)
    assert seen[0] == seen[1], "whoever makes a batch, it is the same"
    assert seen[0][:22] != seen[0][22:]


def test_validation_is_weighted_by_samples(tmp_path: Path) -> None:
    """13 samples in batches of 4, 4, 4 and 1, whose losses are their sizes; and one right answer in the last."""

    def outputs(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        right = np.eye(10, dtype=np.float32)
        return right[targets] if len(inputs) == 1 else right[(targets + 1) % 10]

    told = Told()
    loop(StubTrainer(outputs=outputs), dataset(SHAPE), tmp_path, told, goal=Goal(epochs=1)).run()
    (epoch,) = told.epochs
    assert epoch.validation_loss == pytest.approx((3 * 4 * 4 + 1) / 13)
    assert epoch.accuracy == pytest.approx(1 / 13)
    assert epoch.validation_samples == 13


def test_the_training_loss_is_weighted_too_and_every_step_is_told(tmp_path: Path) -> None:
    told, losses = Told(), [1.0, 1.0, 1.0, 1.0, 1.0, 12.0]
    loop(StubTrainer(losses=losses), dataset(SHAPE), tmp_path, told, goal=Goal(epochs=1)).run()
    assert told.epochs[0].train_loss == pytest.approx((5 * 4 + 2 * 12) / 22)
    assert list(told.epochs[0].losses) == told.heard == losses


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_with_its_step(tmp_path: Path, value: float) -> None:
    told, losses = Told(), [1.0] * 8 + [value] + [1.0] * 9
    with pytest.raises(WrongResultError, match=r"step 9 \(epoch 2, step 3 of 6\); the loss before it was 1") as caught:
        loop(StubTrainer(losses=losses), dataset(SHAPE), tmp_path, told, goal=Goal(epochs=3)).run()
    assert "learning rate" in caught.value.hint
    assert len(told.epochs) == 1


def test_a_batch_that_is_not_finite_is_named(tmp_path: Path) -> None:
    work = workload(lambda _, images, __: np.where(images > 0, np.nan, 1.0))
    with pytest.raises(WrongResultError) as caught:
        loop(StubTrainer(losses=[math.nan] * 6), dataset(SHAPE), tmp_path, Told(), work=work).run()
    assert "inputs of that step's batch are not finite" in caught.value.hint


def scripted(right: list[int]) -> StubTrainer:
    """A trainer whose validation has so many of its 13 samples right, epoch by epoch."""
    asked = iter([index < count for count in right for index in range(13)])

    def outputs(_: np.ndarray, targets: np.ndarray) -> np.ndarray:
        hits = np.array([next(asked) for _ in targets])
        return np.eye(10, dtype=np.float32)[np.where(hits, targets, (targets + 1) % 10)]

    return StubTrainer(outputs=outputs)


def test_it_stops_at_the_target(tmp_path: Path) -> None:
    told, goal = Told(), Goal(epochs=9, target_accuracy=10 / 13)
    assert loop(scripted([5, 9, 10, 13]), dataset(SHAPE), tmp_path, told, goal=goal).run() is Ending.TARGET
    assert len(told.epochs) == 3


def test_it_stops_when_patience_is_over_and_the_best_is_kept(tmp_path: Path) -> None:
    told, goal = Told(), Goal(epochs=9, patience=2)
    assert loop(scripted([5, 9, 8, 9, 13]), dataset(SHAPE), tmp_path, told, goal=goal).run() is Ending.PATIENCE
    assert len(told.epochs) == 4
    top = best(told.epochs)
    assert top is not None
    assert top.number == 2
    kept, state = load_checkpoint(tmp_path / "best.safetensors")
    assert len(kept.epochs) == 2
    assert state["model.steps"] == 12
    assert len(load_checkpoint(tmp_path / "last.safetensors")[0].epochs) == 4


def test_it_goes_on_where_the_last_checkpoint_ends(tmp_path: Path) -> None:
    whole, parts = Told(), Told()
    (tmp_path / "whole").mkdir()
    loop(StubTrainer(), dataset(SHAPE), tmp_path / "whole", whole, goal=Goal(epochs=4)).run()
    for epochs in (1, 3, 4):
        loop(StubTrainer(), dataset(SHAPE), tmp_path, parts, goal=Goal(epochs=epochs)).run()
    assert [epoch.number for epoch in parts.epochs] == [1, 2, 3, 4]
    assert [epoch.losses for epoch in parts.epochs] == [epoch.losses for epoch in whole.epochs]


def test_other_data_is_refused(tmp_path: Path) -> None:
    loop(StubTrainer(), dataset(SHAPE), tmp_path, Told(), goal=Goal(epochs=1)).run()
    with pytest.raises(Exception, match="other data"):
        loop(StubTrainer(), dataset(SHAPE, train=23), tmp_path, Told()).run()


def test_the_first_step_of_each_size_is_apart(tmp_path: Path) -> None:
    told = Told()
    loop(StubTrainer(), dataset(SHAPE), tmp_path, told).run()
    assert [epoch.first_steps_samples for epoch in told.epochs] == [4 + 2, 0]
    for epoch in told.epochs:
        assert epoch.first_steps_s <= epoch.input_s + epoch.compute_s
        assert epoch.input_s + epoch.compute_s + epoch.validation_s <= epoch.end_s - epoch.begin_s + 1e-3
        assert isinstance(samples_s(epoch), float)


def test_losses_are_read_before_they_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_PENDING", 2)
    lengths: list[int] = []

    class Counting(StubTrainer):
        def read(self, losses: list[float]) -> list[float]:
            lengths.append(len(losses))
            return super().read(losses)

    loop(Counting(), dataset(SHAPE), tmp_path, Told(), goal=Goal(epochs=1)).run()
    assert lengths == [2, 2, 2]


class StoppedError(Exception):
    """What kills a training in its middle."""


class Stopping(StubTrainer):
    """Dies when it is asked for a step; its loss is a random number, as dropout would make it, from generators of
    Python and NumPy whose state only the checkpoint can have."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self._dies_at = dies_at

    def train_batch(self, arrays: tuple[np.ndarray, ...]) -> float:
        if self.steps == self._dies_at:
            raise StoppedError
        super().train_batch(arrays)
        return random.random() + float(np.random.random())


def streamed(data: Dataset) -> Dataset:
    """The same samples as a stream that shuffles with the generators of the process, as people write them."""

    def open_pass(_: int) -> Iterator[tuple[int, np.ndarray]]:
        order = np.random.permutation(22)
        return enumerate(order[at : at + 4] for at in range(0, 22, 4))

    return replace(data, train=Stream(name="the list", open=open_pass, read=taking(data)))


def taking(data: Dataset) -> Callable[[int, np.ndarray], Batch]:
    return lambda _, positions: data.train.take(positions)  # type: ignore[union-attr]


@pytest.mark.parametrize("made", [dataset, lambda shape: streamed(dataset(shape))], ids=["by position", "a stream"])
@pytest.mark.parametrize("dies_at", [1, 8, 9, 11])
def test_a_training_killed_in_an_epoch_goes_on_in_its_middle(
    tmp_path: Path, made: Callable[..., Dataset], dies_at: int
) -> None:
    """Six steps an epoch, and a checkpoint after every two."""
    goal, every, data = Goal(epochs=3), CheckpointInterval(steps=2), made(SHAPE)
    whole, told, again = Told(), Told(), Told()
    (tmp_path / "whole").mkdir()
    reference = Stopping()
    loop(reference, data, tmp_path / "whole", whole, goal=goal, every=every).run()
    first, second = Stopping(dies_at), Stopping()
    with pytest.raises(StoppedError):
        loop(first, data, tmp_path, told, goal=goal, every=every).run()
    resumed = loop(second, data, tmp_path, again, goal=goal, every=every)
    resumed.run()
    epochs = [*told.epochs, *again.epochs]
    assert [epoch.losses for epoch in epochs] == [epoch.losses for epoch in whole.epochs]
    assert [epoch.samples for epoch in epochs] == [22, 22, 22]
    kept = dies_at // 2 * 2
    assert rows(first.trained) == rows(reference.trained[:dies_at])
    assert len(second.trained) == 18 - kept, "what a checkpoint holds is not trained again"
    assert rows(second.trained) == rows(reference.trained[kept:])
    split = next(epoch for epoch in again.epochs if epoch.number == dies_at // 6 + 1)
    assert len(split.earlier) == (1 if kept % 6 else 0)
    at_the_end = [6, 12, 18] if isinstance(data.train, Stream) else []  # nothing says that it is the end
    assert [step for _, step in whole.saves] == sorted([2, 4, 8, 10, 14, 16, *at_the_end])


def test_a_checkpoint_in_an_epoch_is_not_read_as_a_whole_one(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        loop(Stopping(8), dataset(SHAPE), tmp_path, Told(), every=CheckpointInterval(steps=1)).run()
    within, _ = load_checkpoint(tmp_path / "last.safetensors")
    whole, _ = load_checkpoint(tmp_path / "best.safetensors")
    assert (within.schema, whole.schema) == (2, 1), "an older version must refuse the one and take the other"
    assert within.partial is not None
    assert (within.partial.number, len(within.partial.losses), within.partial.sizes) == (2, 2, (4, 4))
    assert whole.partial is None


def test_checkpoints_by_time() -> None:
    every = CheckpointInterval(minutes=2)
    assert not every.is_due(elapsed_s=119, steps=10**6)
    assert every.is_due(elapsed_s=120, steps=1)


def test_limits_of_samples_and_steps(tmp_path: Path) -> None:
    data, trainer, told = dataset(SHAPE), StubTrainer(), Told()
    loop(trainer, data, tmp_path, told, goal=Goal(epochs=2, limit_samples=7)).run()
    assert [(epoch.samples, epoch.validation_samples) for epoch in told.epochs] == [(7, 7), (7, 7)]
    seen = rows(trainer.trained)
    assert sorted(seen[:7]) == sorted(seen[7:]), "the same samples in each epoch"
    (tmp_path / "steps").mkdir()
    trainer, told = StubTrainer(), Told()
    loop(trainer, data, tmp_path / "steps", told, goal=Goal(epochs=2, limit_steps=2)).run()
    assert [(epoch.steps, epoch.validation_samples) for epoch in told.epochs] == [(2, 13), (2, 13)]
    assert told.shares[-1] == 1.0


def test_an_endless_stream_ends_with_its_limits_and_has_no_share_before(tmp_path: Path) -> None:
    data = dataset(SHAPE)

    stream = Stream(name="it", open=lambda _: ((at, np.arange(4)) for at in count()), read=taking(data))
    endless, told = replace(data, train=stream, validation=stream), Told()
    loop(StubTrainer(), endless, tmp_path, told, goal=Goal(epochs=1, limit_steps=3)).run()
    assert [(epoch.steps, epoch.validation_samples) for epoch in told.epochs] == [(3, 12)]
    (tmp_path / "samples").mkdir()
    told = Told()
    loop(StubTrainer(), endless, tmp_path / "samples", told, goal=Goal(epochs=1, limit_samples=9)).run()
    assert [(epoch.samples, epoch.validation_samples) for epoch in told.epochs] == [(12, 12)], "whole batches"
    assert set(told.shares) == {None}


def regressing(errors: list[float]) -> StubTrainer:
    """A trainer whose outputs are off by these numbers, validation by validation."""
    batches = iter(error for error in errors for _ in range(4))
    return StubTrainer(outputs=lambda _, targets: targets.astype(np.float32) + np.float32(next(batches)))


def test_any_figure_can_be_the_target(tmp_path: Path) -> None:
    goal = Goal(epochs=9, target=Target(name="mae", falls=True, value=0.5))
    told = Told()
    assert loop(regressing([3, 1, 0.25, 0]), dataset(SHAPE), tmp_path, told, goal=goal).run() is Ending.TARGET
    assert [epoch.metrics["mae"] for epoch in told.epochs] == pytest.approx([3, 1, 0.25])
    assert all(isinstance(epoch.accuracy, Absent) for epoch in told.epochs)


def test_the_best_is_by_what_is_monitored(tmp_path: Path) -> None:
    goal = Goal(epochs=9, patience=2, monitor=Metric(name="rmse", falls=True))
    told = Told()
    assert loop(regressing([3, 1, 2, 4, 0]), dataset(SHAPE), tmp_path, told, goal=goal).run() is Ending.PATIENCE
    assert len(told.epochs) == 4
    assert len(load_checkpoint(tmp_path / "best.safetensors")[0].epochs) == 2


@pytest.mark.parametrize("flag", ["--target", "--monitor"])
def test_a_figure_that_nothing_measures_is_told_before_anything_is_trained(tmp_path: Path, flag: str) -> None:
    metric = Target(name="accuracy", falls=False, value=0.9) if flag == "--target" else Metric(name="f2", falls=False)
    goal = Goal(epochs=1).aimed_at(metric) if isinstance(metric, Target) else Goal(epochs=1, monitor=metric)
    trainer = regressing([1])
    first = (np.zeros((4, 9), np.uint8), np.arange(4, dtype=np.int32))
    with pytest.raises(UnsupportedError, match=f"{flag} {metric.name}: this training has no {metric.name}") as caught:
        loop(trainer, dataset(SHAPE), tmp_path, Told(), goal=goal).check(first)
    assert not trainer.trained
    assert "mae, r2, rmse" in caught.value.hint


def test_the_task_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    first = (np.zeros((4, 9), np.uint8), np.arange(4, dtype=np.int32))
    assert loop(StubTrainer(), dataset(SHAPE), tmp_path, Told()).check(first) == "classification"


def test_a_step_of_the_users_own_trains_without_a_validation(tmp_path: Path) -> None:
    class Adversarial(StubTrainer):
        recipe = Recipe(model=None, step=lambda *_: 0.0)

        def evaluate(self, _: tuple[np.ndarray, ...]) -> tuple[float, object]:
            pytest.fail("nothing can be evaluated")

    told = Told()
    running = loop(Adversarial(), dataset(SHAPE), tmp_path, told)
    assert running.check((np.zeros((4, 9)), np.arange(4))) is None
    running.run()
    assert isinstance(told.epochs[0].validation_loss, Absent)
    top = best(told.epochs)
    assert top is not None
    assert top.number == 2, "by the training loss, which falls"


def test_a_metric_of_the_users_own_is_kept_by_epoch(tmp_path: Path) -> None:
    class Measured(StubTrainer):
        recipe = replace(RECIPE, metrics={"rows": lambda outputs, targets: float(len(outputs) == len(targets))})

    told = Told()
    loop(Measured(), dataset(SHAPE), tmp_path, told, goal=Goal(epochs=1)).run()
    assert told.epochs[0].metrics == {"rows": 1.0}
