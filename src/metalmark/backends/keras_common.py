"""What TensorFlow and JAX share by sharing Keras 3: dtype policy, loss, loss scaling, what counts as a weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from metalmark.backends.base import DeviceReport
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Device, DeviceKind, Dtype, Plan
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Recipe, Workload

POLICIES = {Dtype.BFLOAT16: "mixed_bfloat16", Dtype.FLOAT16: "mixed_float16"}


def build(plan: Plan, workload: Workload, backend: str) -> Recipe:
    """The recipe, its model seeded and under the plan's dtype policy, which layers read when they are made."""
    if keras.config.backend() != backend:
        raise UnsupportedError(
            f"Keras runs on {keras.config.backend()} in this process, and can't change once imported.",
            hint=f"Start Python with KERAS_BACKEND={backend}.",
        )
    # ~/.keras/keras.json may say otherwise, and then the same plan would be another model.
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy(POLICIES.get(plan.settings.dtype, "float32"))
    keras.utils.set_random_seed(plan.seed)
    recipe = workload.recipe("keras", plan.params)
    if plan.settings.channels_last and not any(len(v.shape) == 4 for v in recipe.model.variables):
        raise UnsupportedError(
            "--channels-last: this model has no 4-dimensional weight, so there is no image layout to change."
        )
    return recipe


def make_optimizer(recipe: Recipe, dtype: Dtype, trainable: Sequence[Any]) -> Any:
    """Built at once: a traced step may create no variables."""
    optimizer = recipe.optimizer()
    if dtype is Dtype.FLOAT16:
        # Small gradients are zero in float16 unless the loss is scaled up before the backward pass.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(list(trainable))
    return optimizer


def call_arguments(inputs: Sequence[Any]) -> Any:
    """Keras models take one argument: a tensor, or a list of them."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def total_loss(recipe: Recipe, targets: Any, outputs: Any, penalties: Sequence[Any]) -> Any:
    """One number: Keras loss functions answer per sample, and regularisers answer apart from the loss."""
    return sum(penalties, keras.ops.mean(recipe.loss(targets, outputs)))


def count(variables: Sequence[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def count_weights(model: Any) -> int:
    """Weights, frozen ones too, without moving statistics and random seeds: what PyTorch calls parameters."""
    # Keras lists frozen weights and statistics together as non-trainable; only the layers keep them apart.
    return sum(count(layer._trainable_variables) for layer in model._flatten_layers())


def absent(title: str, word: Device, reports: Sequence[DeviceReport]) -> UnsupportedError:
    """The device asked for is not here: why, and how to get it."""
    if word.kind is DeviceKind.GPU:
        reasons = " ".join(f"{r.word}: {r.reason}" for r in reports if not r.present)
        return UnsupportedError(f"{title} has no accelerator here. {reasons}", hint="Use --device cpu.")
    report = next(r for r in reports if r.word == word.kind.value)
    return UnsupportedError(f"{title} has no {report.word} here: {report.reason}", hint=report.fix)


def pick(title: str, word: Device, devices: Sequence[Any]) -> Any:
    """The device of that index, which must be one of these."""
    index = word.index or 0
    if index >= len(devices):
        plural = "s" if len(devices) != 1 else ""
        raise UnsupportedError(f"There is no {word}: {title} sees {len(devices)} such device{plural}, from 0 on.")
    return devices[index]


def unknown_memory(reason: str) -> DeviceMemory:
    why = Absent(reason=reason)
    return DeviceMemory(live_bytes=why, driver_bytes=why, peak_bytes=why)


HOST_MEMORY = unknown_memory("on the CPU the process's memory is the device's; see telemetry")
