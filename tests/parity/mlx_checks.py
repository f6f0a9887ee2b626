"""What MLX's side must do, in a process of its own: `python -m tests.parity.mlx_checks`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from mlx import core as mx
from mlx import nn, optimizers

from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.model.parity import Quantity
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Settings
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.parity.base import Named
from metalmark.parity.mlx import SIDE, MlxSubject
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network
from metalmark.parity.prefixes.on_mlx import find_compiled_part
from metalmark.workloads.catalog import load

SIZES: dict[str, dict[str, Any]] = {
    "mnist-mlp": {"batch_size": 8},
    "bert": {"size": "tiny", "seq_len": 16, "batch_size": 4},
    "mobilenet-cifar10": {"pixels": 32, "batch_size": 4, "train": "all"},
    "conv256": {"batch_size": 2, "pixels": 16},
}


def build(_: Params) -> Recipe:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    return Recipe(model=model, loss=partial(nn.losses.mse_loss, reduction="mean"), optimizer=optimizers.SGD(0.1))


def make_batch(_: Params, rng: np.random.Generator) -> Batch:
    return Batch(inputs=(rng.standard_normal((4, 8), np.float32),), targets=rng.standard_normal((4, 2), np.float32))


OWN = Workload(
    name="own", title="Two layers with dropout between them", params=(Param("batch_size", 4),), build={"mlx": build},
    batch=make_batch,
)  # fmt: skip


def plan_of(workload: Workload, **settings: Any) -> Plan:
    params = {param.name: param.default for param in workload.params} | SIZES.get(workload.name, {})
    return Plan(
        workload=workload.name, params=params, framework="mlx", device=Device(kind=DeviceKind.CPU), mode=Mode.TRAINING,
        settings=Settings(**settings),
    )  # fmt: skip


@contextmanager
def opened(name: str | Workload, *, double: bool = False, **settings: Any) -> Iterator[tuple[MlxSubject, Arrays]]:
    workload = load(name) if isinstance(name, str) else name
    plan = plan_of(workload, **settings)
    with SIDE.open(plan, workload, double=double) as subject:
        batch = workload.batch(plan.params, np.random.default_rng(1))
        yield subject, leaves_of(subject.recipe.prepare(batch))[0]


def same(left: Named, right: Named) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def seen(subject: MlxSubject, arrays: Arrays, *, training: bool) -> Named:
    found: Named = {}
    subject.layers(arrays, training=training, see=lambda name, array: found.update({name: array}))
    return found


def check_layouts() -> None:
    with opened("conv256") as (subject, arrays):
        shapes = {slot.name: slot.shape for slot in subject.slots()}
        assert list(shapes.values()) == [(32, 3, 3, 3), (32,), (10, 32 * 7 * 7), (10,)], shapes
        values = subject.values()
        subject.load({name: np.zeros_like(array) for name, array in values.items()})
        subject.load(values)
        assert same(subject.values(), values)
        outputs = seen(subject, arrays, training=False)
        assert [array.shape for array in outputs.values()] == [(2, 32, 14, 14), (2, 32, 14, 14), (2, 32, 7, 7), (2, 10)]
        ((_, predicted),) = subject.predict(arrays)
        assert np.array_equal(predicted, outputs["layers.4"])
        # What a dense layer computes from pictures that are flattened as PyTorch does it, by the common layout.
        flat = outputs["layers.2"].reshape(2, -1)
        by_hand = flat @ values["layers.4.weight"].T + values["layers.4.bias"]
        assert np.allclose(by_hand, predicted, atol=1e-4), np.abs(by_hand - predicted).max()
        _, gradients = subject.loss_and_gradients(arrays)
        assert {name: array.shape for name, array in gradients.items()} == shapes
        assert type(subject.recipe.model.layers[0]) is nn.Conv2d


def check_statistics() -> None:
    with opened("mobilenet-cifar10") as (subject, arrays):
        slots = subject.slots()
        assert [slot.statistic for slot in slots] == sorted(slot.statistic for slot in slots)
        statistics = [slot.name for slot in slots if slot.statistic]
        assert statistics[:2] == ["backbone.features.0.1.running_mean", "backbone.features.0.1.running_var"]
        assert not any(slot.trainable for slot in slots if slot.statistic)
        before = subject.values()
        seen(subject, arrays, training=False)
        subject.predict(arrays)
        assert same(subject.values(), before), "evaluation changes nothing"
        subject.read([subject.train_batch(arrays)])
        now = subject.values()
        assert all(not np.array_equal(now[name], before[name]) for name in statistics)


def check_steps(**settings: Any) -> None:
    with opened("mnist-mlp", **settings) as (subject, arrays):
        values = subject.values()
        ends = []
        for _ in range(2):
            subject.load(values)
            losses = subject.read([subject.train_batch(arrays) for _ in range(3)])
            ends.append((losses, subject.values()))
        assert ends[0][0] == ends[1][0]
        assert same(ends[0][1], ends[1][1]), "the optimiser begins anew with each load"
        subject.load(values)
        loss, gradients = subject.loss_and_gradients(arrays)
        assert abs(loss - ends[0][0][0]) < 1e-5
        assert same(subject.values(), values), "to look at gradients is no step"
        for _ in range(2):
            subject.load(values)
            subject.apply(gradients)
            applied = subject.values()
            subject.load(values)
            subject.train_batch(arrays)
            stepped = subject.values()
            for name, array in applied.items():
                moved = np.abs(stepped[name] - values[name]).max()
                assert moved > 0
                assert np.abs(array - stepped[name]).max() < 0.01 * moved, name


def check_gradients() -> None:
    with opened("bert") as (subject, arrays):
        values = subject.values()
        _, gradients = subject.loss_and_gradients(arrays)
        # Along the gradient itself, where the loss changes most and rounding counts least.
        length = np.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in gradients.values()))

        def loss_at(distance: float) -> float:
            subject.load({name: array + distance / length * gradients[name] for name, array in values.items()})
            return subject.loss_and_gradients(arrays)[0]

        slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
        assert abs(slope / length - 1) < 0.01, (slope, length)


def check_float64() -> None:
    """MLX has it, but not in its functions."""
    with pytest.raises(UnsupportedError, match="float64"), opened("mnist-mlp", double=True):
        pass


def check_dropout() -> None:
    with opened("bert") as (subject, arrays):
        assert same(seen(subject, arrays, training=True), seen(subject, arrays, training=True)), "it begins off"
        subject.seed(0)
        found = subject.dropped(arrays)
        assert {each.name for each in found} >= {"dropout", "layers.0.dropout", "layers.1.attention.dropout"}
        for each in found:
            assert abs(each.rate - 0.1) < 1e-6
            assert abs(each.scale - 1 / 0.9) < 1e-3, each
            assert each.elements < 1000 or abs(each.share - 0.1) < 0.06, each


def check_switching(*, compile: bool) -> None:
    """What MLX compiles keeps the dropout that it was compiled with."""
    with opened(OWN, compile=compile) as (subject, arrays):
        values = subject.values()
        losses: dict[tuple[bool, int], set[float]] = {}
        for on, seed in ((False, 1), (False, 2), (True, 1), (True, 1), (True, 2)):
            subject.set_dropout(on)
            subject.load(values)
            subject.seed(seed)
            losses.setdefault((on, seed), set()).update(subject.read([subject.train_batch(arrays)]))
        assert losses[False, 1] == losses[False, 2]
        assert len(losses[True, 1]) == 1
        assert len({*losses[False, 1], *losses[True, 1], *losses[True, 2]}) == 3, losses


class Odd(nn.Module):
    """Wrong where it is compiled: only there can nothing be evaluated yet."""

    def __call__(self, inputs: Any) -> Any:
        try:
            mx.eval(inputs)
        except ValueError:
            return inputs * 1.01
        return inputs


class Branches(nn.Module):
    def __init__(self, *, odd: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.odd = Odd() if odd else nn.Identity()
        self.norm, self.head = nn.BatchNorm(8), nn.Linear(8, 2)

    def __call__(self, inputs: Any) -> Any:
        query, key = self.odd(self.query(inputs)), mx.tanh(self.key(inputs))
        return self.head(self.norm(query * key + self.value(inputs)))


def check_compiled_parts() -> None:
    """The value's branch ends after the odd layer and has no part in it: it must not hide it."""
    for odd, quantity, until in (
        (True, Quantity.GRADIENT, "odd"),
        (True, Quantity.PREDICTION, "odd"),
        (False, Quantity.GRADIENT, ""),
    ):
        workload = replace(OWN, build={"mlx": partial(branches, odd=odd)})
        with opened(workload) as (subject, arrays):
            job = PartJob(plan=plan_of(workload), paths={}, quantity=quantity, name="")
            found = find_compiled_part(Network(subject, arrays, Settings(compile=True)), job)
            assert found.until == until, found
            assert ("do not differ" in found.note) is not odd
            assert type(subject.recipe.model.query) is nn.Linear


def branches(_: Params, *, odd: bool) -> Recipe:
    loss = partial(nn.losses.mse_loss, reduction="mean")
    return Recipe(model=Branches(odd=odd), loss=loss, optimizer=optimizers.SGD(0.1))


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    check_layouts()
    check_statistics()
    check_steps()
    check_steps(compile=True)
    check_gradients()
    check_float64()
    check_dropout()
    check_switching(compile=False)
    check_switching(compile=True)
    check_compiled_parts()
    sys.stdout.write("good")
