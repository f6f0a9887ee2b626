"""What TensorFlow and JAX share by sharing Keras 3: dtype policy, loss, loss scaling, what counts as a weight."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras

from metalmark.backends.outputs import own_loss
from metalmark.backends.session import require_images
from metalmark.errors import UnsupportedError
from metalmark.model.nest import flatten
from metalmark.model.plan import Dtype, Plan
from metalmark.model.workload import Recipe, Workload

Loss = Callable[[Any, Any, Sequence[Any]], Any]
"""loss(targets, outputs, the regularisers' penalties)"""
MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
"""Reductions of Keras losses whose result Keras divides by the number of TensorFlow's replicas."""
POLICIES = {Dtype.BFLOAT16: "mixed_bfloat16", Dtype.FLOAT16: "mixed_float16"}


def build(plan: Plan, workload: Workload, backend: str, *, double: bool = False) -> Recipe:
    """Make the recipe, its model seeded and under the plan's dtype policy, which layers read when they are made.
    `double`: float64 instead, whatever the plan says."""
    if keras.config.backend() != backend:
        raise UnsupportedError(
            f"Keras runs on {keras.config.backend()} in this process, and can't change once imported.",
            hint=f"Start Python with KERAS_BACKEND={backend}.",
        )
    # ~/.keras/keras.json may say otherwise, and then the same plan would be another model.
    keras.config.set_floatx("float64" if double else "float32")
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy("float64" if double else POLICIES.get(plan.settings.dtype, "float32"))
    keras.utils.set_random_seed(plan.seed)
    recipe = workload.recipe("keras", plan.params)
    if plan.settings.channels_last:
        require_images(len(variable.shape) for variable in recipe.model.variables)
    return recipe


def make_optimizer(recipe: Recipe, dtype: Dtype, trainable: Sequence[Any]) -> Any:
    """Make the optimiser and build it at once: a traced step may create no variables."""
    optimizer = own_optimizer(recipe)
    if dtype is Dtype.FLOAT16:
        # Small gradients are zero in float16 unless the loss is scaled up before the backward pass.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if not trainable:
        raise UnsupportedError(
            "The model has no trainable weights: there is nothing to train.",
            hint="Measure it with --mode inference, or set `trainable` of a layer.",
        )
    optimizer.build(list(trainable))
    return optimizer


def own_optimizer(recipe: Recipe) -> Any:
    """Return the recipe's optimiser: given as an object, a name, a class or a function, or by a compiled model."""
    given = recipe.optimizer
    if given is None and getattr(recipe.model, "compiled", False):
        return recipe.model.optimizer
    if given is None:
        raise UnsupportedError(
            "The recipe needs an optimiser and has none.", hint='Recipe(..., optimizer="adam"), or compile the model.'
        )
    if callable(given) and not isinstance(given, keras.optimizers.Optimizer):
        given = given()
    try:
        return keras.optimizers.get(given)
    except (ValueError, TypeError) as error:
        raise UnsupportedError(f"Keras knows no optimiser {given!r}.", hint='Recipe(optimizer="adam")') from error


def call_arguments(inputs: Any) -> Any:
    """Return the one argument that Keras models take: a tensor, a list of them or a dict."""
    if not isinstance(inputs, tuple):
        return inputs
    return inputs[0] if len(inputs) == 1 else list(inputs)


def loss_of(recipe: Recipe, replicas: int = 1) -> Loss:
    """Return a loss that is one number: Keras loss functions give one per sample, and regularisers stand apart.
    `replicas`: by how many of TensorFlow's replicas Keras divides the mean of a loss."""
    given, model = recipe.loss, recipe.model
    if replicas > 1:
        refuse_unknown_scale(given, model)
    if given is None and getattr(model, "compiled", False):
        return lambda targets, outputs, penalties: sum(penalties, _compiled_loss(model, targets, outputs))
    if given is None:
        return lambda _, outputs, penalties: sum(penalties, own_loss(outputs))
    if isinstance(given, type):
        raise UnsupportedError(
            f"Recipe(loss={given.__name__}) is a class, not a loss.", hint=f"Make one: loss={given.__name__}()."
        )
    try:
        function = keras.losses.get(given)
    except ValueError as error:
        raise UnsupportedError(f"Keras knows no loss {given!r}.", hint='Recipe(loss="mse")') from error
    times = replicas if getattr(function, "reduction", None) in MEANS else 1
    if times > 1:
        return lambda targets, outputs, penalties: sum(penalties, keras.ops.mean(function(targets, outputs)) * times)
    return lambda targets, outputs, penalties: sum(penalties, keras.ops.mean(function(targets, outputs)))


def refuse_unknown_scale(given: Any, model: Any) -> None:
    """Refuse a loss of which it is not known whether Keras divides it by the number of replicas."""
    own = isinstance(given, keras.losses.Loss) and not type(given).__module__.startswith("keras.")
    if own or (given is None and getattr(model, "compiled", False)):
        what = f"the loss {type(given).__name__}" if own else "the loss of a compiled model"
        raise UnsupportedError(
            f"--nproc: Keras divides {what} by the number of processes or not, which can't be told from outside.",
            hint='Give a loss of Keras, Recipe(loss="mse"), or a function of targets and outputs.',
        )


def _compiled_loss(model: Any, targets: Any, outputs: Any) -> Any:
    """Return what `compile` was given, for each of several outputs. `compute_loss` would add the penalties of weights
    that a pure function does not see."""
    # Its means of each loss are kept nowhere: JAX has no place for them inside a traced function.
    with keras.StatelessScope() if keras.config.backend() == "jax" else nullcontext():
        return model._compile_loss(targets, outputs, None)


def models_of(recipe: Recipe, batch: Mapping[str, Any]) -> list[Any]:
    """Return the recipe's model, or all models of its nest, built: one without an Input layer has no weights until it
    has seen a batch."""
    leaves, layout = flatten(recipe.model)
    for name, model in zip(layout.names, leaves, strict=True):
        if isinstance(model, type):
            raise UnsupportedError(
                f"Recipe(model={model.__name__}) is a class, not a model.",
                hint=f"Make one: model={model.__name__}(...).",
            )
        if not isinstance(model, keras.Model):
            raise UnsupportedError(f"model{name} of the recipe is a {type(model).__name__}, not a keras.Model.")
        if not (model.built and model.weights) and recipe.step is None:
            model(call_arguments(batch["inputs"]))
    return leaves


def refuse_own_float16(dtype: Dtype) -> None:
    if dtype is Dtype.FLOAT16:
        raise UnsupportedError(
            "--dtype float16 needs the loss to be scaled before the backward pass, which is inside your own step.",
            hint="Use --dtype bfloat16, or scale inside the step.",
        )


def count(variables: Sequence[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def count_weights(model: Any) -> int:
    """Count weights, frozen ones too, without moving statistics and random seeds: what PyTorch calls parameters."""
    # Keras lists frozen weights and statistics together as non-trainable; only the layers keep them apart.
    return sum(count(layer._trainable_variables) for layer in model._flatten_layers())
