"""A Keras network of which XLA computes one layer otherwise than TensorFlow does, and one of which it does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from metalmark.feeds.leaves import leaves_of
from metalmark.model.parity import Quantity
from metalmark.model.plan import Mode, Plan, Settings
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.parity.base import ParityBackend
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network
from metalmark.parity.prefixes import CompiledPart

FEATURES = 8


def build(params: Params) -> Recipe:
    """Three branches; in one of them, random numbers of a fixed seed, which XLA draws by a method of its own."""
    import keras
    import tensorflow as tf
    from keras import layers

    class Scrambled(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * tf.random.stateless_normal((FEATURES,), seed=[1, 2])

    class Subclassed(keras.Model):
        """Its activation is no layer."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (layers.Dense(FEATURES, name=name) for name in ("q", "k", "v"))
            self.odd = Scrambled(name="odd") if params["odd"] else layers.Identity(name="odd")
            self.norm, self.head = layers.BatchNormalization(name="norm"), layers.Dense(2, name="head")

        def call(self, inputs: Any, training: bool = False) -> Any:
            query, key = self.odd(self.query(inputs)), keras.ops.tanh(self.key(inputs))
            return self.head(self.norm(query * key + self.value(inputs), training=training))

    given = keras.Input((FEATURES,))
    odd = Scrambled(name="odd") if params["odd"] else layers.Identity(name="odd")
    query, key = odd(layers.Dense(FEATURES, name="q")(given)), layers.Dense(FEATURES, "tanh", name="k")(given)
    mixed = layers.Multiply(name="mixed")([query, key])
    added = layers.Add(name="added")([mixed, layers.Dense(FEATURES, name="v")(given)])
    functional = keras.Model(given, layers.Dense(2, name="head")(layers.BatchNormalization(name="norm")(added)))
    return Recipe(
        model=Subclassed() if params["subclassed"] else functional,
        loss="mse",
        optimizer=partial(keras.optimizers.SGD, 0.1),
    )


def make_batch(_: Params, rng: np.random.Generator) -> Batch:
    return Batch(
        inputs=rng.standard_normal((16, FEATURES), np.float32), targets=rng.standard_normal((16, 2), np.float32)
    )


BRANCHES = Workload(
    name="branches", title="Three branches", build={"keras": build}, batch=make_batch,
    params=(Param("batch_size", 16), Param("odd", True), Param("subclassed", False)),
)  # fmt: skip


def check(side: ParityBackend, plan: Plan) -> None:
    from metalmark.parity.prefixes.on_tensorflow import find_compiled_part

    def found(quantity: Quantity = Quantity.GRADIENT, mode: Mode = Mode.TRAINING, **params: bool) -> CompiledPart:
        own = {param.name: param.default for param in BRANCHES.params} | params
        mine = replace(plan, workload=BRANCHES.name, params=own, mode=mode)
        with side.open(mine, BRANCHES) as subject:
            arrays = leaves_of(subject.recipe.prepare(BRANCHES.batch(own, np.random.default_rng(0))))[0]
            job = PartJob(plan=mine, paths={}, quantity=quantity, name="")
            return find_compiled_part(Network(subject, arrays, Settings(compile=True)), job)  # type: ignore[arg-type]

    # The value's branch ends after the odd layer and has no part in it: it must not hide it.
    assert found() == CompiledPart(until="odd")
    assert found(Quantity.PREDICTION, Mode.INFERENCE, subclassed=True) == CompiledPart(until="subclassed/odd")
    right = found(odd=False)
    assert not right.until
    assert "do not differ" in right.note
