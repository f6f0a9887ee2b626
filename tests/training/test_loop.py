"""The loop with a trainer that keeps what it was given: what is trained on, what is validated, when it stops."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from metalmark.errors import WrongResultError
from metalmark.model.training import Ending, Goal
from metalmark.training import loop as loops
from metalmark.training.derived import best, samples_s
from tests.training.files import dataset
from tests.training.stub import StubTrainer, Told, loop, workload

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
    from metalmark.training.folder import load_checkpoint

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
    monkeypatch.setattr(loops, "MOST_PENDING", 2)
    lengths: list[int] = []

    class Counting(StubTrainer):
        def read(self, losses: list[float]) -> list[float]:
            lengths.append(len(losses))
            return super().read(losses)

    loop(Counting(), dataset(SHAPE), tmp_path, Told(), goal=Goal(epochs=1)).run()
    assert lengths == [2, 2, 2]
