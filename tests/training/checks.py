"""What every framework's trainer must do, in a process of its own: `python -m tests.training.checks NAME ANSWER`."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from metalmark.model.plan import Dtype, Plan, Settings
from metalmark.model.training import Epoch, Goal
from metalmark.model.workload import Workload
from metalmark.training import samples
from metalmark.training.base import State, Trainer, Training
from metalmark.training.folder import CheckpointInterval, Request
from metalmark.training.loop import Loop
from metalmark.workloads.catalog import load
from tests.training import stub
from tests.training.files import dataset

SMALL = "net.py:net"
CIFAR = dataset((4, 4, 3))
MNIST = dataset((28, 28, 1), train=400, validation=70)


class Checks:
    def __init__(self, training: Training) -> None:
        self._training = training
        # With dropout and a rate that falls at each step: both must survive a checkpoint.
        self._image = stub.plan(training.name, SMALL, batch_size=8)
        self._plain = stub.plan(training.name, "mnist-mlp", batch_size=32)
        if training.name == "torch":
            one = Settings(threads=1)
            self._image, self._plain = replace(self._image, settings=one), replace(self._plain, settings=one)

    @contextmanager
    def _open(self, plan: Plan, data: object = CIFAR) -> Iterator[Trainer]:
        if "keras" in sys.modules:
            # Layers are numbered from the start of the process; a training has one to itself.
            sys.modules["keras"].utils.clear_session()
        with self._training.open(plan, samples.light(find(plan.workload), data)) as trainer:  # type: ignore[arg-type]
            yield trainer

    def _run(self, plan: Plan, epochs: tuple[int, ...], data: object = CIFAR) -> tuple[list[Epoch], State]:
        """The curve and the state after these numbers of epochs in all, each with a trainer of its own."""
        told, state = stub.Told(), {}
        with tempfile.TemporaryDirectory() as folder:
            for count in epochs:
                request = Request(id="training0", plan=plan, goal=Goal(epochs=count))
                with self._open(plan, data) as trainer:
                    Loop(trainer, find(plan.workload), plan, data, request,  # type: ignore[arg-type]
                         folder=Path(folder), session=0, workers=0, tell=told).run()  # fmt: skip
                    state = trainer.state()
        return told.epochs, state

    @cache  # noqa: B019  it lives as long as the process
    def _whole(self) -> tuple[list[Epoch], State]:
        """Two epochs without an interruption, trained once for all checks that compare others with them."""
        return self._run(self._image, (2,))

    def check_it_learns(self) -> None:
        epochs, _ = self._run(self._plain, (4,), MNIST)
        assert epochs[-1].train_loss < epochs[0].train_loss
        assert epochs[-1].accuracy > 0.9, epochs[-1].accuracy
        assert epochs[-1].top5 >= epochs[-1].accuracy  # type: ignore[operator]

    def check_the_same_seed_gives_the_same_bits(self) -> None:
        (first, state), (second, again) = self._whole(), self._run(self._image, (2,))
        assert [epoch.losses for epoch in first] == [epoch.losses for epoch in second]
        same(state, again)
        other, _ = self._run(replace(self._image, seed=1), (1,))
        assert other[0].losses != first[0].losses

    def check_a_resumed_training_gives_the_same_bits(self) -> None:
        (whole, state), (parts, again) = self._run(self._image, (3,)), self._run(self._image, (1, 3))
        assert [epoch.losses for epoch in whole] == [epoch.losses for epoch in parts]
        assert [epoch.validation_loss for epoch in whole] == [epoch.validation_loss for epoch in parts]
        assert [epoch.learning_rate for epoch in whole] == [epoch.learning_rate for epoch in parts]
        same(state, again)

    def check_a_training_killed_in_an_epoch_gives_the_same_bits(self) -> None:
        whole, state = self._whole()
        told, request = stub.Told(), Request(
            id="training0", plan=self._image, goal=Goal(epochs=2), checkpoint_every=CheckpointInterval(steps=1)
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for steps in (4, 1, 9):  # three make an epoch: it dies in the second one, twice
                with self._open(self._image) as trainer, suppress(StopIteration):
                    dying_after(trainer, steps)
                    Loop(trainer, find(SMALL), self._image, CIFAR, request, folder=Path(folder), session=0,
                         workers=0, tell=told).run()  # fmt: skip
                    again = trainer.state()
        assert [epoch.losses for epoch in whole] == [epoch.losses for epoch in told.epochs]
        assert whole[1].validation_loss == told.epochs[1].validation_loss
        assert len(told.epochs[1].earlier) == 2
        same(state, again)

    def check_bfloat16_trains_and_resumes(self) -> None:
        plan = replace(self._image, settings=replace(self._image.settings, dtype=Dtype.BFLOAT16))
        (whole, state), (parts, again) = self._run(plan, (2,)), self._run(plan, (1, 2))
        assert [epoch.losses for epoch in whole] == [epoch.losses for epoch in parts]
        same(state, again)
        exact, _ = self._whole()
        assert whole[0].losses != exact[0].losses, "it computed in float32"

    def check_evaluating_changes_nothing(self) -> None:
        with self._open(self._image) as trainer:
            batch = samples.Samples(find(SMALL), trainer.recipe, self._image, CIFAR.validation)[0]
            before = trainer.state()
            loss, outputs = trainer.evaluate(batch)
            assert trainer.evaluate(batch)[0] == loss, "dropout is on"
            same(before, trainer.state())
            assert outputs.shape == (8, 10)
            assert outputs.dtype == np.float32
            trainer.train_batch(batch)
            assert trainer.evaluate(batch)[0] != loss, "training moved nothing"

    def check_a_batch_of_any_size_weighs_by_its_samples(self) -> None:
        """13 validation samples in batches of 8 and 5 as in batches of one."""
        whole, _ = self._run(self._image, (1,))
        work = find(SMALL)
        plan = replace(self._image, params={**self._image.params, "batch_size": 1})
        with self._open(self._image) as trainer:
            for arrays in batches(samples.Samples(work, trainer.recipe, self._image, CIFAR.train, 1)):
                trainer.train_batch(arrays)
            single = samples.Samples(work, trainer.recipe, plan, CIFAR.validation)
            found = [trainer.evaluate(arrays) for arrays in batches(single)]
        losses, right = [loss for loss, _ in found], [int(scores.argmax()) for _, scores in found]
        assert len(losses) == 13
        np.testing.assert_allclose(whole[0].validation_loss, np.mean(losses), rtol=1e-4)
        assert abs(whole[0].accuracy - np.mean(right == CIFAR.validation.labels)) < 1e-9

    def check_the_learning_rate_falls(self) -> None:
        (epoch,), _ = self._run(self._image, (1,))
        decay = 0.9
        # Where it is asked after the step it may be that of the next one.
        nearest = min(abs(epoch.learning_rate / (0.01 * decay**steps) - 1) for steps in (2, 3))
        assert nearest < 1e-6, epoch.learning_rate


def dying_after(trainer: Trainer, steps: int) -> None:
    """Let it take so many steps and no more."""
    left, train_batch = iter(range(steps)), trainer.train_batch

    def train(arrays: tuple[np.ndarray, ...]) -> object:
        next(left)
        return train_batch(arrays)

    trainer.train_batch = train  # type: ignore[method-assign]


def find(name: str) -> Workload:
    return load(name, source=str(Path(__file__).with_name("net.py")) if name == SMALL else "")


def batches(passes: samples.Samples) -> Iterator[tuple[np.ndarray, ...]]:
    return (passes[number] for number in range(len(passes)))


def same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    assert any(name.startswith("model.") for name in one)
    assert any(name.startswith("optimizer.") for name in one)
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert one[name].tobytes() == other[name].tobytes(), f"{name} differs"


NAMES = [name for name in dir(Checks) if name.startswith("check_")]


def main(name: str, answer: str) -> None:
    checks = Checks(import_module(f"metalmark.training.{name}").TRAINING)
    results = {}
    for check in NAMES:
        try:
            getattr(checks, check)()
            results[check] = ""
        except BaseException:  # noqa: BLE001  whatever it is, the test shows it
            results[check] = traceback.format_exc()
    Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
