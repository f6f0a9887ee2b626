"""What TensorFlow and JAX share by sharing Keras 3: dtype policy, loss, loss scaling, what counts as a weight."""

import math
from collections.abc import Sequence
from typing import Any

import keras

from metalmark.backends.session import require_images
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Dtype, Plan
from metalmark.model.workload import Recipe, Workload

POLICIES = {Dtype.BFLOAT16: "mixed_bfloat16", Dtype.FLOAT16: "mixed_float16"}


def build(plan: Plan, workload: Workload, backend: str) -> Recipe:
    """Make the recipe, its model seeded and under the plan's dtype policy, which layers read when they are made."""
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
    if plan.settings.channels_last:
        require_images(len(variable.shape) for variable in recipe.model.variables)
    return recipe


def make_optimizer(recipe: Recipe, dtype: Dtype, trainable: Sequence[Any]) -> Any:
    """Make the optimiser and build it at once: a traced step may create no variables."""
    optimizer = recipe.optimizer()
    if dtype is Dtype.FLOAT16:
        # Small gradients are zero in float16 unless the loss is scaled up before the backward pass.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(list(trainable))
    return optimizer


def call_arguments(inputs: Sequence[Any]) -> Any:
    """Return the one argument that Keras models take: a tensor, or a list of them."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def total_loss(recipe: Recipe, targets: Any, outputs: Any, penalties: Sequence[Any]) -> Any:
    """Return one number: Keras loss functions give one per sample, and regularisers stand apart from the loss."""
    return sum(penalties, keras.ops.mean(recipe.loss(targets, outputs)))


def count(variables: Sequence[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def count_weights(model: Any) -> int:
    """Count weights, frozen ones too, without moving statistics and random seeds: what PyTorch calls parameters."""
    # Keras lists frozen weights and statistics together as non-trainable; only the layers keep them apart.
    return sum(count(layer._trainable_variables) for layer in model._flatten_layers())
