"""Describes a Keras network: which of its layers are Keras' own, how each is made and what it is given.

`python -m metalmark.parity.networks.on_keras JOB ANSWER`.
"""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from metalmark.backends.catalog import version_of
from metalmark.backends.keras_common import POLICIES, own_optimizer
from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype
from metalmark.parity.keras_common import KerasSubject, is_leaf
from metalmark.parity.networks import LayerPart, NetworkParts, PartJob, TensorPart
from metalmark.parity.networks.question import Network, answer, array_part, parameter_part

PLAIN = (bool, int, float, str, type(None))
NOT_NEEDED = ("name", "dtype", "trainable", "seed")
"""What a script has no use for; the dtype follows another rule."""


def describe_network(network: Network[Any], job: PartJob) -> NetworkParts:
    subject, targets = network.subject, network.targets
    model = subject.recipe.model
    dtype = job.plan.settings.dtype
    names: dict[Any, str] = subject._layer_names()
    failing = _layer_of(names, job.name)
    inputs = _inputs_of(subject, network.arrays)
    rates = {id(layer): rate for layer, _, rate in subject._random_layers}
    outputs = subject.predict(network.arrays)

    def part(layer: Any, rate: float | None = None) -> LayerPart:
        return LayerPart(
            name=names[layer], text=_layer_text(layer, dtype, rate), given=inputs.get(id(layer)), rate=rate
        )

    alone = None
    if failing is not None:
        alone = part(failing, rates.get(id(failing)) if job.quantity is Quantity.DROPOUT else None)
    return NetworkParts(
        version=f"{version_of(job.plan.framework)} with Keras {keras.__version__}",
        chain=tuple(part(layer) for layer in _chain(model) if layer in names),
        failing=alone if alone is not None and alone.text else None,
        loss=_loss_text(subject.recipe) if len(targets) == 1 else "",
        targets=array_part(targets[0]) if len(targets) == 1 else None,
        outputs=array_part(outputs[0][1]) if len(outputs) == 1 else None,
        parameter=parameter_part(network, job.name, _call("optimizers", own_optimizer(subject.recipe)))
        if job.quantity is Quantity.OPTIMIZER
        else None,
    )


def _chain(model: Any) -> list[Any]:
    """Return the layers of a network in which each takes what the one before gives, all Keras' own; else nothing."""
    layers = [layer for layer in getattr(model, "layers", []) if not isinstance(layer, keras.layers.InputLayer)]
    if not isinstance(model, keras.Sequential):
        if not isinstance(model, keras.src.models.functional.Functional) or len(model.inputs) != 1:
            return []
        given = [[tensor._keras_history.operation for tensor in _given(layer)] for layer in layers]
        first = model.inputs[0]._keras_history.operation
        if given != [[each] for each in (first, *layers)][: len(layers)]:
            return []
    found: list[Any] = []
    for layer in layers:
        inner = _chain(layer) if isinstance(layer, keras.Model) else [layer] if _layer_text(layer) else []
        if not inner:
            return []
        found += inner
    return found


def _given(layer: Any) -> list[Any]:
    """Return what a layer of a graph is given; nothing where it is called more than once."""
    return list(layer._inbound_nodes[0].input_tensors) if len(layer._inbound_nodes) == 1 else []


def _layer_of(names: dict[Any, str], name: str) -> Any | None:
    """Return the layer that a quantity's name belongs to: "dense/kernel", "dense#2" or "dense"."""
    found = [
        (each, layer)
        for layer, each in names.items()
        if is_leaf(layer) and (name == each or name.startswith((f"{each}/", f"{each}#", f"{each}[")))
    ]
    return max(found, key=lambda pair: len(pair[0]), default=(None, None))[1]


def _inputs_of(subject: KerasSubject, arrays: Any) -> dict[int, TensorPart]:
    found: dict[int, TensorPart] = {}

    def wrapper(layer: Any, _: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **options: Any) -> Any:
            if len(given) == 1 and subject._is_computed(given[0]):
                found.setdefault(id(layer), array_part(keras.ops.convert_to_numpy(given[0])))
            return call(*given, **options)

        return called

    with subject._wrapped(is_leaf, wrapper):
        subject._forward(arrays, training=False)
    return found


def _layer_text(layer: Any, dtype: Dtype = Dtype.FLOAT32, rate: float | None = None) -> str:
    """Return the call that makes a layer of Keras' own; empty where there is none. `rate`: of a dropout layer that is
    to drop as it did before the check switched it off."""
    policy = layer.dtype_policy.name
    own = {"dtype": policy} if policy != POLICIES.get(dtype, "float32") else {}
    return _call("layers", layer, **own, **({} if rate is None else {"rate": rate}))


def _loss_text(recipe: Any) -> str:
    given = recipe.loss
    if given is None and getattr(recipe.model, "compiled", False):
        given = recipe.model.loss
    if given is None or isinstance(given, dict | list | tuple):
        return ""
    loss = keras.losses.get(given)
    if isinstance(loss, keras.losses.Loss):
        return _call("losses", loss)
    name = getattr(loss, "__name__", "")
    return f"keras.losses.{name}" if getattr(keras.losses, name, None) is loss else ""


def _call(module: str, made: Any, **changed: Any) -> str:
    """Return the call that makes an object of a module of Keras', with no argument that it would have anyway. Of a
    class that is derived from one of Keras', that one is named: a script is tried before it is written."""
    kinds = vars(getattr(keras, module))
    abstract = (keras.layers.Layer, keras.losses.Loss, keras.optimizers.Optimizer)
    kind = next((each for each in type(made).__mro__ if kinds.get(each.__name__) is each), None)
    if kind is None or kind in abstract:
        return ""
    config = {**made.get_config(), **changed}
    allowed = set(inspect.signature(kind).parameters)
    left = {
        key: value for key, value in config.items() if key in allowed and key not in NOT_NEEDED and _is_plain(value)
    }
    try:
        wanted = _plain_config(kind(**left))
        for key in list(left):
            fewer = {each: value for each, value in left.items() if each != key}
            if _makes(kind, fewer, wanted):
                left = fewer
    except (TypeError, ValueError):
        return ""
    left |= {key: value for key, value in changed.items() if key == "dtype"}
    return f"keras.{module}.{kind.__name__}({', '.join(f'{key}={_shown(value)}' for key, value in left.items())})"


def _makes(kind: Any, given: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether these arguments make the same object."""
    try:
        return _plain_config(kind(**given)) == wanted
    except (TypeError, ValueError):
        return False


def _plain_config(made: Any) -> dict[str, Any]:
    """Return what an object says of itself, without how its weights begin, which scripts choose themselves."""
    return {key: value for key, value in made.get_config().items() if key not in NOT_NEEDED and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _shown(value: Any) -> str:
    # Keras keeps learning rates in float32: 0.001 comes back as 0.0010000000474974513.
    short = float(str(np.float32(value))) if isinstance(value, float) else value
    return repr(short if isinstance(value, float) and np.float32(short) == np.float32(value) else value)


if __name__ == "__main__":
    answer(describe_network, sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; nothing that a framework would do at its end is needed
