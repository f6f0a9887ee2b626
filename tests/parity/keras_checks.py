"""What the sides of TensorFlow and JAX must do, in a process of its own: `python -m tests.parity.keras_checks NAME
ANSWER`."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.lib.stride_tricks import sliding_window_view

from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype, Mode, Plan, Settings
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.parity.base import Named, ParityBackend, Subject
from metalmark.parity.candidate import CandidateExaminer
from metalmark.parity.job import Case, Curved, Dropping, Finished, Line, MeasuredArray, Options, Repeating, Setup
from metalmark.parity.lines import LineWriter, read_lines
from metalmark.parity.reference import ReferenceExaminer
from metalmark.workloads.catalog import load
from tests.parity import compiled_keras
from tests.training import stub

SIDE, CLASSES, DROPS = 6, 3, 0.5
SIZES: dict[str, dict[str, Any]] = {
    "images": {"batch_size": 8},
    "mnist-mlp": {"batch_size": 8},
    "bert": {"size": "tiny", "seq_len": 16, "batch_size": 4},
}


def build(_: Params) -> Recipe:
    """A network within a network, with a layer of each kind that is turned to the common layout, one of them frozen."""
    import keras
    from keras import layers

    inner = features = keras.Input((SIDE, SIDE, 3))
    features = layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv", trainable=False)(features)
    features = layers.BatchNormalization(name="norm", momentum=0.9)(features)
    features = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="each")(features)
    body = keras.Model(inner, features)
    outer = keras.Input((SIDE, SIDE, 3))
    features = layers.Flatten(name="flat")(body(outer))
    features = layers.Dropout(DROPS, name="drop")(features)
    features = layers.Dense(5, activation="tanh", name="hidden")(features)
    logits = layers.Dense(CLASSES, dtype="float32", name="logits")(features)
    return Recipe(
        model=keras.Model(outer, logits),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=partial(keras.optimizers.Adam, 1e-2),
    )


def images(params: Params, rng: np.random.Generator) -> Batch:
    size = params["batch_size"]
    return Batch(
        inputs=rng.standard_normal((size, SIDE, SIDE, 3), np.float32),
        targets=rng.integers(0, CLASSES, size, dtype=np.int32),
    )


IMAGES = Workload(
    name="images", title="A small network of images", params=(Param("batch_size", 8),), build={"keras": build},
    batch=images,
)  # fmt: skip


class Checks:
    def __init__(self, side: ParityBackend) -> None:
        self._side = side

    def check_images(self) -> None:
        with self._open("images") as (subject, arrays):
            slots = {slot.name: slot for slot in subject.slots()}
            assert {name: slot.shape for name, slot in slots.items()} == {
                "conv/kernel": (4, 3, 3, 3), "norm/gamma": (4,), "norm/beta": (4,), "each/kernel": (8, 1, 3, 3),
                "each/bias": (8,), "hidden/kernel": (5, 8 * SIDE**2), "hidden/bias": (5,),
                "logits/kernel": (CLASSES, 5), "logits/bias": (CLASSES,),
                "norm/moving_mean": (4,), "norm/moving_variance": (4,),
            }  # fmt: skip
            assert [slot.name for slot in slots.values() if slot.statistic] == list(slots)[-2:]
            assert [slot.name for slot in slots.values() if not slot.trainable] == ["conv/kernel", *list(slots)[-2:]]
            self._round_trip(subject)
            self._common_layout(subject, arrays)
            self._gradients("images", subject, arrays)
            self._applies(subject, arrays)
            self._trains(subject, arrays)
            self._drops(subject, arrays, ["drop"], DROPS)

    def check_compiled_parts(self) -> None:
        compiled_keras.check(self._side, self._plan("mnist-mlp"))

    def check_bert(self) -> None:
        with self._open("bert") as (subject, arrays):
            shapes = {slot.name: slot.shape for slot in subject.slots()}
            assert shapes["multi_head_attention/query/kernel"] == (128, 128)
            assert shapes["multi_head_attention/query/bias"] == (128,)
            assert not any("seed" in name for name in shapes)
            self._round_trip(subject)
            seen = self._layers(subject, arrays)
            attention = ["query", "key", "value", "softmax", "attention_output"]
            places = [list(seen).index(f"multi_head_attention/{name}") for name in attention]
            assert places == sorted(places), list(seen)
            values, states = subject.values(), seen["embeddings/dropout"]
            expected = (
                states @ values["multi_head_attention/query/kernel"].T + values["multi_head_attention/query/bias"]
            )
            close(seen["multi_head_attention/query"].reshape(expected.shape), expected, 1e-4)
            self._gradients("bert", subject, arrays)
            self._applies(subject, arrays)
            inside = [f"multi_head_attention{number}/dropout_{place}" for number, place in (("", 2), ("_1", 5))]
            names = ["embeddings/dropout", inside[0], "dropout_1", "dropout_3", inside[1], "dropout_4", "dropout_6",
                     "dropout_7"]  # fmt: skip
            self._drops(subject, arrays, names, 0.1)

    def check_low_precision(self) -> None:
        with self._open("mnist-mlp") as (exact, arrays):
            values = exact.values()
            loss, gradients = exact.loss_and_gradients(arrays)
            exact.load(values)
            exact.apply(gradients)
            after = exact.values()
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16):
            with self._side.open(self._plan("mnist-mlp", dtype), load("mnist-mlp")) as subject:
                subject.load(values)
                low_loss, low = subject.loss_and_gradients(arrays)
                assert low_loss != loss
                close(np.array(low_loss), np.array(loss), 2e-2)
                for name, array in gradients.items():
                    # A unit next to zero may fall on the other side of it, and then has another gradient altogether.
                    assert np.linalg.norm(low[name] - array) < 0.2 * np.linalg.norm(array), (dtype, name)
                subject.load(values)
                subject.apply(gradients)
                for name, array in subject.values().items():
                    close(array - values[name], after[name] - values[name], 1e-4)

    def check_inference(self) -> None:
        plan = replace(self._plan("images"), mode=Mode.INFERENCE)
        with self._side.open(plan, IMAGES) as subject:
            arrays, values = batch(plan, subject), subject.values()
            ((name, outputs),) = subject.predict(arrays)
            assert (name, outputs.shape) == ("", (8, CLASSES))
            subject.load({key: array / 2 for key, array in values.items()})
            ((_, other),) = subject.predict(arrays)
            assert (other != outputs).any()
            subject.load(values)
            ((_, again),) = subject.predict(arrays)
            assert (again == outputs).all()
            seen = self._layers(subject, arrays)
            close(seen["logits"], outputs, 1e-4)

    def check_a_whole_examination(self) -> None:
        plan = self._plan("images")
        with tempfile.TemporaryDirectory() as folder:
            options = Options(steps=2, draws=1, repeats=3, repeat_s=0.1, seeds=1, curve_s=0.01)
            case = Case(plan=plan, reference=plan, folder=folder, options=options)
            theirs, ours = (self._examine(case, is_reference=each) for each in (True, False))
        (setup,) = (line for line in theirs if isinstance(line, Setup))
        assert setup.truth == "float64", setup.notes
        assert isinstance(theirs[-1], Finished)
        assert isinstance(ours[-1], Finished)
        assert {type(line) for line in ours} == {Setup, MeasuredArray, Dropping, Repeating, Curved, Finished}
        found = [line.distance for line in ours if isinstance(line, MeasuredArray)]
        others = {Quantity.DROPOUT, Quantity.REPEAT, Quantity.CURVE, Quantity.ACCURACY}
        assert {distance.key.quantity for distance in found} == set(Quantity) - others
        for distance in found:
            assert distance.typical is not None
            assert distance.typical <= 1e-3 * distance.rms, distance
        curves = [line.curve for line in (*theirs, *ours) if isinstance(line, Curved) and not line.draw]
        assert len(curves) == 2
        close(np.array(curves[0].losses), np.array(curves[1].losses), 1e-3)

    # What they share.

    def _plan(self, name: str, dtype: Dtype = Dtype.FLOAT32) -> Plan:
        params = {param.name: param.default for param in find(name).params} | SIZES[name]
        return replace(stub.plan(self._side.name, name, **params), settings=Settings(dtype=dtype))  # type: ignore[arg-type]

    @contextmanager
    def _open(self, name: str, *, double: bool = False) -> Iterator[tuple[Subject, Arrays]]:
        plan = self._plan(name)
        with self._side.open(plan, find(name), double=double) as subject:
            yield subject, batch(plan, subject)

    def _round_trip(self, subject: Subject) -> None:
        before = subject.values()
        assert list(before) == [slot.name for slot in subject.slots()]
        changed = {name: array + 1e-3 * np.arange(array.size).reshape(array.shape) for name, array in before.items()}
        subject.load(changed)
        for name, array in subject.values().items():
            np.testing.assert_allclose(array, changed[name], rtol=1e-6)
        subject.load(before)
        for name, array in subject.values().items():
            assert (array == before[name]).all(), name

    def _layers(self, subject: Subject, arrays: Arrays, *, training: bool = False) -> Named:
        found: Named = {}

        def see(name: str, array: np.ndarray) -> None:
            assert name not in found
            found[name] = array

        subject.layers(arrays, training=training, see=see)
        return found

    def _common_layout(self, subject: Subject, arrays: Arrays) -> None:
        """What each layer gives is what the arrays of the common layout give, with images as PyTorch has them."""
        values, seen = subject.values(), self._layers(subject, arrays)
        assert list(seen) == ["conv", "norm", "each", "flat", "drop", "hidden", "logits"]
        assert list(self._layers(subject, arrays, training=True)) == list(seen)
        conv = np.einsum("nchwyx,ocyx->nohw", windows(arrays[0]), values["conv/kernel"])
        close(seen["conv"], conv.transpose(0, 2, 3, 1), 1e-4)
        kernel = values["each/kernel"].reshape(4, 2, 3, 3)
        each = np.einsum("nchwyx,cmyx->ncmhw", windows(seen["norm"]), kernel).reshape(-1, 8, SIDE, SIDE)
        each += values["each/bias"].reshape(8, 1, 1)
        close(seen["each"], each.transpose(0, 2, 3, 1), 1e-4)
        hidden = np.tanh(each.reshape(len(each), -1) @ values["hidden/kernel"].T + values["hidden/bias"])
        close(seen["hidden"], hidden, 1e-4)
        logits = hidden @ values["logits/kernel"].T + values["logits/bias"]
        close(seen["logits"], logits, 1e-4)
        subject.load(values)
        ((_, prediction),) = subject.predict(arrays)
        close(prediction, logits, 1e-4)

    def _gradients(self, name: str, subject: Subject, arrays: Arrays) -> None:
        values = subject.values()
        loss, gradients = subject.loss_and_gradients(arrays)
        assert list(gradients) == [slot.name for slot in subject.slots() if slot.trainable]
        subject.load(values)
        with self._open(name, double=True) as (exact, _):
            assert [slot.name for slot in exact.slots()] == [slot.name for slot in subject.slots()]
            exact.load(values)
            true_loss, true = exact.loss_and_gradients(arrays)
            close(np.array(loss), np.array(true_loss), 1e-5)
            largest = max(float(np.abs(array).max()) for array in true.values())
            for each, array in true.items():
                # What should be zero, as the gradient of a key's bias is, has no relative error.
                difference = float(np.abs(gradients[each] - array).max())
                assert difference <= 1e-4 * float(np.abs(array).max()) + 1e-6 * largest, (each, difference)
            # In float64 the slope along the gradient is what the gradient says.
            norm = sum(float(np.square(array).sum()) for array in true.values())
            step, losses = 1e-4 / norm**0.5, []
            for sign in (1, -1):
                exact.load({each: array + sign * step * true.get(each, 0) for each, array in values.items()})
                losses.append(exact.loss_and_gradients(arrays)[0])
            slope = (losses[0] - losses[1]) / (2 * step)
            assert abs(slope / norm - 1) < 1e-3, (slope, norm)
            ((_, outputs),) = exact.predict(arrays)
            assert outputs.dtype == np.float64
        # What was opened before goes on as it was.
        assert sys.modules["keras"].config.floatx() == "float32"
        assert sys.modules["keras"].config.dtype_policy().name == "float32"
        if self._side.name == "jax":
            assert not sys.modules["jax"].config.jax_enable_x64
        again = subject.loss_and_gradients(arrays)[1]
        assert all((again[each] == array).all() for each, array in gradients.items())
        subject.load(values)

    def _applies(self, subject: Subject, arrays: Arrays) -> None:
        """The optimiser makes of a step's gradients what the step itself makes of them."""
        values = subject.values()
        _, gradients = subject.loss_and_gradients(arrays)
        largest = max(float(np.abs(array).max()) for array in gradients.values())
        subject.load(values)
        subject.apply(gradients)
        applied = subject.values()
        subject.load(values)
        subject.train_batch(arrays)
        stepped = subject.values()
        for name, gradient in gradients.items():
            # Adam makes whole steps of gradients that are nothing but rounding errors.
            sure = np.abs(gradient) > 1e-5 * largest
            if not sure.any():
                continue
            assert (applied[name] != values[name])[sure].all(), name
            if self._side.name == "tensorflow" and name.endswith("/embeddings"):
                # Keras' Adam squares the gradient of each use of a row and adds the squares, where the others square
                # the sum; so a row that is used more than once takes a larger step than its gradient says.
                continue
            close((applied[name] - values[name])[sure], (stepped[name] - values[name])[sure], 1e-2)
        subject.load(values)

    def _trains(self, subject: Subject, arrays: Arrays) -> None:
        values = subject.values()
        curves = []
        for _ in range(2):
            subject.load(values)
            curves.append(subject.read([subject.train_batch(arrays) for _ in range(3)]))
        assert curves[0] == curves[1]
        assert curves[0][-1] < curves[0][0]
        assert (subject.values()["norm/moving_mean"] != values["norm/moving_mean"]).any()
        assert (subject.values()["conv/kernel"] == values["conv/kernel"]).all()
        loss, outputs = subject.evaluate(arrays)
        assert np.isfinite(loss)
        assert outputs.shape == (8, CLASSES)
        subject.load(values)

    def _drops(self, subject: Subject, arrays: Arrays, names: list[str], rate: float) -> None:
        values = subject.values()

        def losses(seed: int, *, on: bool) -> list[float]:
            subject.load(values)
            subject.seed(seed)
            subject.set_dropout(on)
            try:
                return subject.read([subject.train_batch(arrays) for _ in range(2)])
            finally:
                subject.set_dropout(False)

        off = losses(1, on=False)
        on = losses(1, on=True)
        assert on != off
        assert losses(1, on=True) == on
        assert losses(2, on=True) != on
        subject.load(values)
        found = subject.dropped(arrays)
        assert [each.name for each in found] == names
        for each in found:
            assert each.rate == rate
            assert abs(each.share - rate) < 6 * (rate * (1 - rate) / each.elements) ** 0.5, each
            assert abs(each.scale - 1 / (1 - rate)) < 1e-3, each
        assert losses(2, on=False) == off
        subject.load(values)

    def _examine(self, case: Case, *, is_reference: bool) -> tuple[Line, ...]:
        folder = Path(case.folder)
        write = LineWriter(folder, reference=is_reference)
        examiner = ReferenceExaminer if is_reference else CandidateExaminer
        examiner(self._side, case, IMAGES, write=write, tell=lambda *_: None).examine()
        write.close()
        return read_lines(folder, reference=is_reference)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = float(np.abs(expected).max())
    difference = float(np.abs(found - expected).max())
    assert difference <= tolerance * scale, f"{difference:.3g} of {scale:.3g}"


def windows(features: np.ndarray) -> np.ndarray:
    """The 3x3 surroundings of each place of images that are (samples, height, width, channels), zeros around them."""
    padded = np.pad(features.transpose(0, 3, 1, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
    return sliding_window_view(padded, (3, 3), axis=(2, 3))


def find(name: str) -> Workload:
    return IMAGES if name == "images" else load(name)


def batch(plan: Plan, subject: Subject) -> Arrays:
    made = find(plan.workload).batch(plan.params, np.random.default_rng(3))
    return leaves_of(subject.recipe.prepare(made))[0]


NAMES = [name for name in vars(Checks) if name.startswith("check_")]


def main(name: str, answer: str, *chosen: str) -> None:
    checks = Checks(import_module(f"metalmark.parity.{name}").SIDE)
    results = {}
    for check in chosen or NAMES:
        try:
            getattr(checks, check)()
            results[check] = ""
        except BaseException:  # noqa: BLE001  whatever it is, the test shows it
            results[check] = traceback.format_exc()
    Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
