"""A trainer in NumPy that keeps what it was given, and a teller that keeps what it was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metalmark.backends.base import Placement
from metalmark.data.dataset import Dataset
from metalmark.feeds.source import Arrays
from metalmark.model.nest import flatten
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.training import Epoch, Goal
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.training.base import State
from metalmark.training.folder import CheckpointInterval, Request
from metalmark.training.loop import Loop
from metalmark.training.samples import limited

UNKNOWN = Absent(reason="a stub")


def _sample(_: Params, images: np.ndarray, labels: np.ndarray) -> Batch:
    return Batch(inputs=(images.reshape(len(images), -1),), targets=labels)


def workload(
    augment: Callable[[Params, np.ndarray, np.random.Generator], np.ndarray] | None = None,
) -> Workload:
    return Workload(
        name="stub",
        title="a stub",
        params=(Param("batch_size", 4),),
        build={"fake": lambda _: RECIPE},
        batch=lambda params, rng: Batch(inputs=(), targets=rng.integers(0, 10, params["batch_size"])),
        datasets=("mnist",),
        sample=_sample,
        augment=augment,
    )


RECIPE = Recipe(model=None, loss=lambda *_: None, optimizer=lambda: None)


class StubTrainer:
    """`outputs(inputs, targets)` are its scores; `losses` those of its steps; the state is a count of steps."""

    placement = Placement(device="stub", name="stub")
    parameters = trainable_parameters = 1
    notes: tuple[str, ...] = ()
    recipe = RECIPE
    layout = flatten({"inputs": (0,), "targets": 0})[1]

    def __init__(self, losses: Sequence[float] = (), outputs: Callable[..., Any] | None = None) -> None:
        self._losses, self._outputs = losses, outputs
        self.steps = 0
        self.trained: list[Arrays] = []
        self.evaluated: list[Arrays] = []

    def train_batch(self, arrays: Arrays) -> float:
        self.trained.append(arrays)
        self.steps += 1
        return self._losses[self.steps - 1] if self._losses else 1.0 / self.steps

    def read(self, losses: list[float]) -> list[float]:
        return list(losses)

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        self.evaluated.append(arrays)
        scores = np.eye(10, dtype=np.float32)[arrays[-1]] if self._outputs is None else self._outputs(*arrays)
        return float(len(arrays[-1])), scores

    def learning_rate(self) -> float:
        return 0.1

    def state(self) -> State:
        return {"model.steps": np.array(self.steps)}

    def load_state(self, state: State) -> None:
        self.steps = int(state["model.steps"])

    def synchronize(self) -> None: ...

    def memory(self) -> DeviceMemory:
        return DeviceMemory(live_bytes=UNKNOWN, driver_bytes=UNKNOWN, peak_bytes=UNKNOWN)


class Told:
    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.heard: list[float] = []
        self.shares: list[float | None] = []
        self.saves: list[tuple[int, int]] = []

    def losses(self, *, epoch: int, step: int, done: float | None, losses: list[float]) -> None:  # noqa: ARG002
        self.heard += losses
        self.shares.append(done)

    def validating(self, *, epoch: int, done: float | None) -> None: ...

    def saved(self, *, epoch: int, step: int) -> None:
        self.saves.append((epoch, step))

    def ended(self, epoch: Epoch, step: int) -> None:  # noqa: ARG002
        self.epochs.append(epoch)


def plan(framework: str = "fake", name: str = "stub", **params: int | str) -> Plan:
    return Plan(
        workload=name,
        params={"batch_size": 4, **params},
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
    )


def loop(
    trainer: StubTrainer,
    data: Dataset,
    folder: Path,
    told: Told,
    *,
    goal: Goal | None = None,
    work: Workload | None = None,
    workers: int = 0,
    every: CheckpointInterval | None = None,
) -> Loop:
    what = plan()
    request = Request(id="training0", plan=what, goal=goal or Goal(epochs=2), checkpoint_every=every)
    data = limited(data, request.goal.limit_samples)
    return Loop(trainer, work or workload(), what, data, request, folder=folder, session=0, workers=workers, tell=told)
