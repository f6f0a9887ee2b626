"""What the agent tells of Keras, TensorFlow, JAX and MLX: one process for each, which trains in every way it knows.

Each script runs twice in its process, watched and not, and must print the same numbers bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.agents import needs, run_script

KERAS = """
    import keras
    import numpy as np

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            rng = np.random.default_rng(index)
            return rng.random((8, 4), dtype="float32"), rng.random((8, 1), dtype="float32")

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    saved = keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)
    losses = model.fit(Rows(), epochs=2, validation_data=Rows(), verbose=0, callbacks=saved).history["loss"]
    x = np.random.default_rng(0).random((60, 4), dtype="float32")
    y = x.sum(1, keepdims=True)
    losses += model.fit(x, y, batch_size=16, epochs=1, validation_split=0.2, verbose=0).history["loss"]
    model.evaluate(x, y, batch_size=30, verbose=0)
    for _ in range(3):
        losses.append(float(model.train_on_batch(x, y)))

    def rows():
        for index in range(4):
            yield Rows()[index]

    losses += model.fit(rows(), verbose=0, steps_per_epoch=4).history["loss"]
    if keras.backend.backend() != "torch":
        model.compile("sgd", "mse", steps_per_execution=4)
        losses += model.fit(x, y, batch_size=10, epochs=1, verbose=0).history["loss"]
    assert type(model.train_function).__module__.partition(".")[0] != "metalmark_agent"
    print(*[loss.hex() for loss in losses])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_keras_fit_and_its_other_loops(tmp_path: Path, backend: str) -> None:
    needs("keras", backend)
    told = run_script(tmp_path, KERAS, KERAS_BACKEND=backend)
    at_once = backend != "torch"
    assert told.steps == 5 * 2 + 3 + 3 + 4 + (6 if at_once else 0)
    assert told.loops[:7] == [
        *[("train", 5), ("validation", 5)] * 2,
        ("train", 3),
        ("validation", 1),
        ("validation", 2),
    ]
    assert told.loops[7:] == [("train", 4)] + [("train", 6)] * at_once
    # Keras shows the mean over an epoch so far: after its last step, that is the epoch's loss.
    printed = [float.fromhex(word) for word in told.printed]
    last = [5, 10, 13, 14, 15, 16, 20, *[26] * at_once]
    assert [told.losses[step] for step in last] == [pytest.approx(loss, rel=1e-6) for loss in printed]
    assert len(told.losses) == (22 if at_once else 20)
    assert told.totals["frameworks"] == sorted(["keras", backend], key=told.totals["frameworks"].index)
    assert (told.totals["device"], told.totals["batch_size"]) == ("cpu", 8)
    assert set(told.totals["phases"]) == {"validation", "checkpoint"}
    # tf.data of several steps at once is asked inside of the compiled function.
    assert told.totals["waits_known"] is (backend != "tensorflow")


TENSORFLOW = """
    import numpy as np
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam()
    x = np.random.default_rng(0).random((48, 4), dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    losses = [float(step(x, y)) for x, y in data]
    compiled = tf.function(step)
    for _ in range(2):
        losses += [compiled(x, y) for x, y in data]
    for x, _ in data:
        model(x)

    class Trainer:
        @tf.function
        def step(self, x, y):
            return {"accuracy": tf.constant(0.5), "loss": compiled(x, y)}

    trainer = Trainer()
    losses += [trainer.step(x, y)["loss"] for x, y in data.take(2)]

    def known():
        print(*[float(loss).hex() for loss in losses])
        losses.clear()

    known()

    @tf.function
    def epoch(data):
        loss = 0.0
        for x, y in data:
            loss = step(x, y)
        return loss

    for _ in range(2):
        epoch(data)

    """


def test_loops_of_tensorflow(tmp_path: Path) -> None:
    needs("tensorflow", "keras")
    told = run_script(tmp_path, TENSORFLOW)
    assert told.steps == 6 + 2 * 6 + 2 + 2 * 6
    assert told.loops == [("train", 6)] * 3 + [("validation", 6), ("train", 2)]
    printed = [float.fromhex(word) for word in told.printed]
    assert [told.losses[step] for step in range(1, 21)] == printed
    assert [row[3] for row in told.rows[-2:]] == [6, 6]  # a loop inside of a compiled function
    assert told.totals["steady"]["backward_s"] > 0
    assert told.syncs("float()", "losses = [float(step(x, y))") == 6
    assert {where.partition(":")[0] for where, *_ in told.totals["syncs"]} == {"script.py"}
    assert told.totals["waits_known"] is False
    assert (told.totals["batch_size"], told.totals["device"]) == (8, "cpu")


JAX = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    def batches(count):
        for index in range(count):
            rng = np.random.default_rng(index)
            yield rng.random((8, 4), dtype="float32"), rng.random((8, 1), dtype="float32")

    def loss_of(params, x, y):
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

    params = {"w": jnp.full((4, 8), 0.1), "v": jnp.full((8, 1), 0.1)}

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return jax.tree.map(lambda old, change: old - 0.1 * change, params, gradients), loss

    losses = []
    for batch in batches(6):
        params, loss = step(params, batch)
        losses.append(float(loss))

    compiled = jax.jit(jax.value_and_grad(loss_of))
    for batch in batches(4):
        loss, gradients = compiled(params, *batch)
        params = jax.tree.map(lambda old, change: old - 0.1 * change, params, gradients)
        losses.append(loss)
    for batch in batches(3):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        losses.append(loss.item())
    losses[-1:] = [jax.block_until_ready(loss)]
    print(*[float(loss).hex() for loss in losses])
    jax.device_put(np.zeros((100, 10), "float32"))

    assert isinstance(step, jax.stages.Wrapped)
    assert (step.__name__, step.lower(params, batch).compile() is not None) == ("step", True)

    class Network:
        @functools.partial(jax.jit, static_argnums=0)
        def double(self, x):
            return 2 * x

    assert Network().double(jnp.ones(())) == 2
    assert jax.vmap(compiled, in_axes=(None, 0, 0))(params, *(each[None] for each in batch))[0].shape == (1,)
"""


def test_loops_of_jax(tmp_path: Path) -> None:
    needs("jax")
    told = run_script(tmp_path, JAX)
    assert told.steps == 6 + 4 + 3
    assert [told.losses[step] for step in range(1, 14)] == [float.fromhex(word) for word in told.printed]
    assert told.syncs("float()", "losses.append(float(loss))") == 6
    assert told.syncs(".item()", "loss.item()") == 3
    assert told.syncs("jax.block_until_ready()", "block_until_ready") == 1
    assert [copy[1:3] for copy in told.totals["copies"]] == [[1, 4000]]
    assert (told.totals["batch_size"], told.totals["device"]) == (8, "cpu")
    assert any("computes gradients" in note for note in told.totals["notes"])
    assert any("no loader that is known" in note for note in told.totals["notes"])
    assert told.totals["first_step_s"] > told.rows[5][1]  # it was compiled in the first


MLX = """
    import functools

    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    import numpy as np

    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    mx.eval(model.parameters())
    optimizer = optim.Adam(1e-2)

    def batches(count):
        for index in range(count):
            rng = np.random.default_rng(index)
            yield mx.array(rng.random((8, 4), dtype="float32")), mx.array(rng.random((8, 1), dtype="float32"))

    def loss_of(model, x, y):
        return ((model(x) - y) ** 2).mean()

    gradients_of = nn.value_and_grad(model, loss_of)
    losses = []
    for x, y in batches(6):
        loss, gradients = gradients_of(model, x, y)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        losses.append(loss.item())
    state = [model.state, optimizer.state]

    @functools.partial(mx.compile, inputs=state, outputs=state)
    def step(x, y, updates=True):
        loss, gradients = gradients_of(model, x, y)
        if updates:
            optimizer.update(model, gradients)
        return loss

    for x, y in batches(5):
        losses.append(step(x, y))
        mx.eval(state)
    model.eval()
    for x, y in batches(3):
        mx.eval(model(x))
    model.train()
    for x, y in batches(4):
        mx.eval(step(x, y, False), state)
        losses.append(step(x, y, True))
        mx.eval(state)
    model.save_weights("model.safetensors")
    print(*[float(loss).hex() for loss in losses])
"""


def test_loops_of_mlx(tmp_path: Path) -> None:
    needs("mlx")
    told = run_script(tmp_path, MLX)
    assert told.steps == 6 + 5 + 4
    printed = [float.fromhex(word) for word in told.printed]
    assert [told.losses[step] for step in range(1, 16)] == printed
    assert told.syncs("mx.eval()", "mx.eval(model.parameters(), optimizer.state)") == 6
    assert told.syncs(".item()", "loss.item()") == 6
    assert set(told.totals["phases"]) == {"validation", "checkpoint"}
    assert (told.totals["batch_size"], told.totals["device"]) == (8, "cpu")
    assert told.totals["frameworks"] == ["mlx"]
    assert any("a call of step()" in note for note in told.totals["notes"])
