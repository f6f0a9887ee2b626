"""What a framework's anatomy must do, in a process of its own: `python -m tests.explain.anatomy_checks FRAMEWORK`."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from metalmark.errors import UnsupportedError
from metalmark.explain.base import Anatomy, ExplainBackend
from metalmark.model.explanation import Profile
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Mode, Plan, Settings
from metalmark.model.run import Absent
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.workloads.catalog import load

BATCH, INPUTS, HIDDEN, CLASSES = 8, 784, 128, 10
FORWARD_FLOPS = 2 * BATCH * (INPUTS * HIDDEN + HIDDEN * CLASSES)
PASSES_FLOPS = 2 * FORWARD_FLOPS + 2 * BATCH * HIDDEN * CLASSES
"""The weights' gradients are as much as the forward pass. Of the inputs' only the second layer's are needed."""
WEIGHT_BYTES = 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)


class Checks:
    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.side: ExplainBackend = import_module(f"metalmark.explain.{framework}").SIDE

    @contextmanager
    def opened(
        self, *, mode: Mode = Mode.TRAINING, workload: Workload | None = None, **settings: Any
    ) -> Iterator[Anatomy]:
        workload = workload or load("mnist-mlp")
        params = {param.name: param.default for param in workload.params} | {"batch_size": BATCH}
        plan = Plan(
            workload=workload.name, params=params, framework=self.framework, device=Device(kind=DeviceKind.CPU),
            mode=mode, settings=Settings(**settings), feed=Feed.PIPELINE, loader=Loader(),
        )  # fmt: skip
        with self.side.open(plan, workload) as anatomy:
            yield anatomy

    def check_parts(self, **settings: Any) -> None:
        """Parts leave the weights alone, and steps go on after them."""
        with self.opened(**settings) as anatomy:
            session = anatomy.session
            session.step()
            session.synchronize()
            before = session.fingerprint()
            for part in (anatomy.forward, anatomy.backward, anatomy.place, anatomy.make):
                part()
                session.synchronize()
                assert session.fingerprint() == before, part
            session.step()
            session.synchronize()
            assert session.fingerprint() != before
            assert math.isfinite(session.proof())
            assert not anatomy.asynchronous
            if settings:
                return
            self.check_work(anatomy)
            self.check_profile(anatomy)
            session.step()
            assert math.isfinite(session.proof())

    def check_work(self, anatomy: Anatomy) -> None:
        work = anatomy.work()
        assert not isinstance(work, Absent), work
        passes = sum(each.flops for each in work if not each.part)
        assert 1.0 <= passes / PASSES_FLOPS < 1.05, (passes, PASSES_FLOPS)
        assert sum(each.bytes for each in work if not each.part) > WEIGHT_BYTES
        # Adam reads gradients, and reads and writes weights and two moments.
        assert sum(each.bytes for each in work if each.part == "optimizer") > 6 * WEIGHT_BYTES

    def check_profile(self, anatomy: Anatomy) -> None:
        profile = anatomy.profile(2)
        assert isinstance(profile, Profile) == (self.framework != "mlx"), profile
        with TemporaryDirectory() as folder:
            plain, packed = Path(folder, "trace.json"), Path(folder, "trace.json.gz")
            if isinstance(profile, Absent):
                assert profile.reason
                with pytest.raises(UnsupportedError):
                    anatomy.trace(plain, 1)
                return
            costs = [each.seconds for each in profile.operations]
            assert 0 < len(costs) <= 10
            assert costs == sorted(costs, reverse=True)
            assert sum(each.share for each in profile.operations) <= 1 + 1e-9
            assert profile.total_s >= sum(costs) * (1 - 1e-9)
            anatomy.trace(plain, 1)
            anatomy.trace(packed, 1)
            for events in (json.loads(plain.read_text()), json.loads(gzip.decompress(packed.read_bytes()))):
                assert any(event.get("ph") == "X" for event in events["traceEvents"])

    def check_inference(self) -> None:
        with self.opened(mode=Mode.INFERENCE) as anatomy:
            anatomy.session.step()
            batch = anatomy.session.feeder.batch
            anatomy.forward()
            assert anatomy.session.feeder.batch != batch
            work = anatomy.work()
            assert not isinstance(work, Absent), work
            assert 1.0 <= sum(each.flops for each in work) / FORWARD_FLOPS < 1.05
            assert {each.part for each in work} == {""}

    def check_own_step(self) -> None:
        with self.opened(workload=own_step(self.framework)) as anatomy:
            anatomy.session.step()
            for part in (anatomy.forward, anatomy.backward):
                with pytest.raises(UnsupportedError, match="your own"):
                    part()
            anatomy.session.step()
            assert math.isfinite(anatomy.session.proof())

    def check_process(self) -> None:
        """What a session sets for the whole process is put back, and what can't be changed says so."""
        with pytest.raises(UnsupportedError, match="threads"):
            self.side.set_threads(1)
        self.side.free_memory()
        keras = sys.modules.get("keras")
        if keras is not None:
            with self.opened(dtype=Dtype.BFLOAT16) as anatomy:
                anatomy.session.step()
                assert keras.config.dtype_policy().name == "mixed_bfloat16"
            assert keras.config.dtype_policy().name == "float32"


def own_step(framework: str) -> Workload:
    builders = {"jax": own_jax, "tensorflow": own_tensorflow, "mlx": own_mlx}
    family = "mlx" if framework == "mlx" else "keras"
    return Workload(
        name="own", title="A step of one's own", params=(Param("batch_size", BATCH),),
        build={family: builders[framework]}, batch=own_batch,
    )  # fmt: skip


def own_batch(_: Params, rng: np.random.Generator) -> Batch:
    return Batch(
        inputs=rng.standard_normal((BATCH, 4), np.float32), targets=rng.standard_normal((BATCH, 1), np.float32)
    )


def own_jax(_: Params) -> Recipe:
    import jax

    def loss(weights: Any, inputs: Any, targets: Any) -> Any:
        return ((inputs @ weights - targets) ** 2).mean()

    def step(weights: Any, inputs: Any, targets: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, inputs, targets)
        return weights - 0.1 * gradient, value

    return Recipe(model=np.zeros((4, 1), np.float32), step=step)


def own_tensorflow(_: Params) -> Recipe:
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - targets) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return Recipe(model=model, optimizer=optimizer, step=step)


def own_mlx(_: Params) -> Recipe:
    from mlx import nn, optimizers

    model, optimizer = nn.Linear(4, 1), optimizers.SGD(0.1)

    def loss(inputs: Any, targets: Any) -> Any:
        return ((model(inputs) - targets) ** 2).mean()

    def step(inputs: Any, targets: Any) -> Any:
        value, gradients = nn.value_and_grad(model, loss)(inputs, targets)
        optimizer.update(model, gradients)
        return value

    return Recipe(model=model, optimizer=optimizer, step=step)


if __name__ == "__main__":
    checks = Checks(sys.argv[1])
    checks.check_parts()
    checks.check_inference()
    checks.check_own_step()
    checks.check_process()
    if checks.framework != "jax":  # which compiles every step
        checks.check_parts(compile=True)
    sys.stdout.write("good")
