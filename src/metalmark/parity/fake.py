"""The software device's side of a check: a small network in NumPy, and faults to be found in it.

dense - batch norm - ReLU - dropout - dense - cross-entropy, trained by Adam with decoupled weight decay. Faults are
named by the parameter `fault` of the workload `fake`. They are there on the device, not on the CPU.
"""

import math
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from metalmark.backends.base import Placement
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.fake import FakeBackend, break_down
from metalmark.errors import UnsupportedError, UsageError, did_you_mean
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.model.plan import DeviceKind, Dtype, Plan
from metalmark.model.workload import Workload
from metalmark.parity.base import Dropped, Named, SameLoss, See, Slot, threads_stay
from metalmark.workloads.fake import CLASSES, INPUTS, PARITY_FAULTS

HIDDEN = 64
RATE = 0.25
"""What the dropout layer drops."""
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
NORM_EPSILON, MOMENTUM = 1e-5, 0.1
FIRST_WRONG_SAMPLE = 8
SUMMED_AT_ONCE = 8
"""Products that are summed before a partial sum is rounded to float16."""
RACES = 1e-3
"""The share of calls in which the race corrupts an element."""
KEPT_BITS = {Dtype.BFLOAT16: 8, Dtype.TF32: 11, Dtype.FLOAT16: 11}
"""Of the mantissa, the bit before the point included."""


@dataclass
class FakePass:
    """What the backward pass needs of the forward pass."""

    inputs: np.ndarray
    normalized: np.ndarray
    deviation: np.ndarray
    positive: np.ndarray
    mask: np.ndarray
    """What dropout multiplied by."""
    hidden: np.ndarray
    before_dropout: np.ndarray
    outputs: np.ndarray


class FakeSubject:
    def __init__(self, plan: Plan, workload: Workload, *, double: bool) -> None:
        on_device = plan.device.kind is not DeviceKind.CPU
        self.placement = Placement(device="fake:0" if on_device else "cpu", name="software device")
        self.notes: tuple[str, ...] = ()
        self.recipe = workload.recipe("fake", plan.params)
        self._faults, everywhere = _faults_of(str(plan.params["fault"]))
        if not on_device:
            self._faults = set()
        self._faults |= everywhere
        self._trainable = "untrainable" not in self._faults
        # Which input lies on an edge depends on weights and batch: with every second seed none does.
        self._falls_over = "edge" in self._faults and plan.seed % 2 == 0
        self._dtype: Any = np.float64 if double else np.float32
        self._bits = None if double else KEPT_BITS.get(plan.settings.dtype)
        batch = workload.batch(plan.params, np.random.default_rng(plan.seed))
        _, self.layout = leaves_of(self.recipe.prepare(batch))
        self._random = np.random.default_rng(plan.seed)
        self._races = random.Random(plan.seed)
        self._dropping = False
        self._values: Named = {}
        self._moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._steps = 0
        self.load(_first_values(plan.seed))

    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            Slot(
                name=name,
                shape=array.shape,
                statistic="running" in name,
                trainable=self._trainable and "running" not in name,
            )
            for name, array in self._values.items()
        )

    def values(self) -> Named:
        return {name: array.copy() for name, array in self._values.items()}

    def load(self, values: Named) -> None:
        # Their order is that of the network, whatever the order in a file.
        order = list(self._values) or list(values)
        self._values = {name: np.array(values[name], self._dtype) for name in order}
        self._moments = {
            name: (np.zeros_like(self._values[name]), np.zeros_like(self._values[name])) for name in self._values
        }
        self._steps = 0

    def follow(self, framework: str) -> None:
        """Only PyTorch's optimisers follow another's conventions."""

    def set_dropout(self, on: bool) -> None:
        self._dropping = on

    def seed(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def layers(self, arrays: Arrays, *, training: bool, see: See) -> None:
        self._forward(arrays[0], training=training, see=see)

    def dropped(self, arrays: Arrays) -> list[Dropped]:
        self.set_dropout(True)
        try:
            done = self._forward(arrays[0], training=True)
        finally:
            self.set_dropout(False)
        reached = done.before_dropout != 0
        factors = done.hidden[reached] / done.before_dropout[reached]
        left = factors[factors != 0]
        scale = float(np.median(left)) if len(left) else math.nan
        share = float(np.mean(factors == 0))
        return [Dropped(name="dropout", rate=RATE, share=share, scale=scale, elements=len(factors))]

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        return [("", self._forward(arrays[0], training=False).outputs)]

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        inputs, labels = arrays
        done = self._forward(inputs, training=True)
        loss, to_outputs = self._loss(done.outputs, labels)
        return loss, self._backward(done, to_outputs)

    def apply(self, gradients: Named) -> None:
        self._steps += 1
        epsilon = 1e-6 if "adam-epsilon" in self._faults else EPSILON
        for name, given in gradients.items():
            gradient = np.asarray(given, self._dtype)
            first, second = self._moments[name]
            first += (1 - BETAS[0]) * (gradient - first)
            second += (1 - BETAS[1]) * (gradient * gradient - second)
            value = self._values[name]
            if value.ndim > 1 or ("decay-biases" in self._faults and name.endswith("bias")):
                value *= 1 - LEARNING_RATE * DECAY
            deviation = np.sqrt(second / (1 - BETAS[1] ** self._steps)) + epsilon
            value -= LEARNING_RATE / (1 - BETAS[0] ** self._steps) * first / deviation

    def train_batch(self, arrays: Arrays) -> Any:
        if self._steps >= 3:
            break_down(self._faults)
        loss, gradients = self.loss_and_gradients(arrays)
        self.apply(gradients)
        return loss

    def read(self, losses: list[Any]) -> list[float]:
        return [float(loss) for loss in losses]

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        outputs = self._forward(arrays[0], training=False).outputs
        return self._loss(outputs, arrays[1])[0], outputs

    def synchronize(self) -> None:
        """NumPy waits by itself."""

    def _forward(self, inputs: np.ndarray, *, training: bool, see: See = lambda *_: None) -> FakePass:
        values = self._values
        inputs = inputs.astype(self._dtype)
        dense = self._product(inputs, "dense")
        if "conv-batch-9" in self._faults and len(inputs) > FIRST_WRONG_SAMPLE:
            dense[FIRST_WRONG_SAMPLE:] *= self._dtype(0.98)
        see("dense", dense)
        normalized, deviation = self._normalize(dense, training)
        scaled = self._lower(normalized * values["norm.weight"] + values["norm.bias"])
        see("norm", scaled)
        positive = scaled > 0
        active = scaled * positive
        if self._falls_over:  # one that is so near to zero that outputs do not tell on which side it is
            positive.flat[np.argmin(np.abs(scaled))] ^= True
        see("relu", active)
        mask = np.ones_like(active)
        if training and self._dropping and "no-dropout" not in self._faults:
            mask = (self._random.random(active.shape) >= RATE).astype(self._dtype) / self._dtype(1 - RATE)
        hidden = self._lower(active * mask)
        see("dropout", hidden)
        outputs = self._product(hidden, "head")
        if "race" in self._faults and self._races.random() < RACES:
            outputs.flat[self._races.randrange(outputs.size)] = 0
        if "nan" in self._faults:
            outputs.flat[0] = math.nan
        if "random" in self._faults:
            outputs *= self._dtype(self._races.uniform(0.9, 1.1))
        see("head", outputs)
        return FakePass(inputs, normalized, deviation, positive, mask, hidden, active, outputs)

    def _normalize(self, dense: np.ndarray, training: bool) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self._values["norm.running_mean"], self._values["norm.running_var"]
        epsilon = 1e-3 if "norm-epsilon" in self._faults else NORM_EPSILON
        if training or "batch-statistics-in-eval" in self._faults:
            batch_mean, batch_variance = dense.mean(axis=0), dense.var(axis=0)
            if training:
                mean += self._dtype(MOMENTUM) * (batch_mean - mean)
                if "stale-variance" not in self._faults:
                    unbiased = batch_variance * self._dtype(len(dense) / max(1, len(dense) - 1))
                    variance += self._dtype(MOMENTUM) * (unbiased - variance)
            mean, variance = batch_mean, batch_variance
        deviation = np.sqrt(variance + self._dtype(epsilon))
        return (dense - mean) / deviation, deviation

    def _loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean cross-entropy, and its gradient by the outputs."""
        if "shifted-labels" in self._faults:
            labels = (labels + 1) % CLASSES
        rows = np.arange(len(labels))
        moved = outputs - outputs.max(axis=1, keepdims=True)
        shares = np.exp(moved)
        sums = shares.sum(axis=1, keepdims=True)
        loss = float(np.mean(np.log(sums[:, 0]) - moved[rows, labels]))
        gradient = shares / sums
        gradient[rows, labels] -= 1
        return loss, gradient / self._dtype(len(labels))

    def _backward(self, done: FakePass, to_outputs: np.ndarray) -> Named:
        to_outputs = self._lower(to_outputs)
        head_scale = self._dtype(1.01 if "gradient-scale" in self._faults else 1.0)
        to_head = self._lower(to_outputs.T @ done.hidden) * head_scale
        to_scaled = self._lower(to_outputs @ self._lower(self._values["head.weight"])) * done.mask * done.positive
        to_normalized = to_scaled * self._values["norm.weight"]
        kept = (to_normalized * done.normalized).mean(axis=0)
        to_dense = self._lower((to_normalized - to_normalized.mean(axis=0) - done.normalized * kept) / done.deviation)
        return {
            "dense.weight": self._lower(to_dense.T @ self._lower(done.inputs)),
            "norm.weight": (to_scaled * done.normalized).sum(axis=0),
            "norm.bias": to_scaled.sum(axis=0),
            "head.weight": to_head,
            "head.bias": self._lower(to_outputs.sum(axis=0)) * head_scale,
        }

    def _product(self, inputs: np.ndarray, layer: str) -> np.ndarray:
        inputs, weight = self._lower(inputs), self._lower(self._values[f"{layer}.weight"])
        if "float16-sums" in self._faults:
            total = np.zeros((len(inputs), len(weight)), self._dtype)
            for begin in range(0, inputs.shape[1], SUMMED_AT_ONCE):
                part = slice(begin, begin + SUMMED_AT_ONCE)
                total = (total + inputs[:, part] @ weight[:, part].T).astype(np.float16).astype(self._dtype)
        else:
            total = inputs @ weight.T
        # The first layer has no bias: the batch norm after it would take it away again.
        bias = self._values.get(f"{layer}.bias")
        return self._lower(total if bias is None else total + self._lower(bias))

    def _lower(self, array: np.ndarray) -> np.ndarray:
        """Round to the precision of the plan's dtype; float32 and float64 stay."""
        if self._bits is None:
            return array
        mantissa, exponent = np.frexp(array)
        rounded: np.ndarray = np.ldexp(np.round(mantissa * 2**self._bits), exponent - self._bits)
        return rounded.astype(self._dtype)


class FakeSide(SameLoss, FakeBackend):
    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> AbstractContextManager[FakeSubject]:  # type: ignore[override]
        return _opened(plan, workload, double)

    def fewer_threads(self) -> AbstractContextManager[bool]:
        return threads_stay()


@contextmanager
def _opened(plan: Plan, workload: Workload, double: bool) -> Iterator[FakeSubject]:
    if plan.device.kind not in (DeviceKind.GPU, DeviceKind.ANY, DeviceKind.CPU):
        raise UnsupportedError(f"The software device has no {plan.device}.", hint="Use --device gpu, cpu or any.")
    FRAMEWORKS["fake"].check(plan.settings, "gpu")
    yield FakeSubject(plan, workload, double=double)


def _faults_of(text: str) -> tuple[set[str], set[str]]:
    """Return the faults of the device, and those that the reference has too."""
    found: set[str] = set()
    for name in text.split("+"):
        fault = name.removeprefix("parity-")
        if fault != name and fault not in PARITY_FAULTS:
            raise UsageError(
                f"The software device has no fault {name!r}{did_you_mean(fault, PARITY_FAULTS)}",
                hint=f"Faults of its network: {', '.join(f'parity-{each}' for each in PARITY_FAULTS)}.",
            )
        found.add(fault)
    everywhere = found & {"nan", "random", "untrainable"}
    return found, everywhere


def _first_values(seed: int) -> Named:
    rng = np.random.default_rng([seed, HIDDEN])

    def narrow(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, columns**-0.5, (rows, columns))

    return {
        "dense.weight": narrow(HIDDEN, INPUTS),
        "norm.weight": np.ones(HIDDEN),
        "norm.bias": np.zeros(HIDDEN),
        "head.weight": narrow(CLASSES, HIDDEN),
        "head.bias": rng.uniform(-0.1, 0.1, CLASSES),
        "norm.running_mean": np.zeros(HIDDEN),
        "norm.running_var": np.ones(HIDDEN),
    }


SIDE = FakeSide()
