"""Describes an MLX network: which of its layers are MLX' own, how each is made and what it is given.

`python -m metalmark.parity.networks.on_mlx JOB ANSWER`.
"""

import inspect
import sys
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from mlx import core as mx
from mlx import nn, optimizers

from metalmark.backends.catalog import version_of
from metalmark.model.parity import Quantity
from metalmark.parity.mlx import MlxSubject, is_leaf
from metalmark.parity.networks import LayerPart, NetworkParts, PartJob, TensorPart
from metalmark.parity.networks.question import Network, answer, array_part, parameter_part
from metalmark.training.mlx import as_numpy_array

MODULES: dict[str, ModuleType] = {"mx": mx, "nn": nn, "nn.losses": nn.losses}
"""Where a network's functions come from, as a script calls it."""


def describe_network(network: Network[MlxSubject], job: PartJob) -> NetworkParts:
    subject, targets = network.subject, network.targets
    failing = _layer_of(subject, job.name)
    inputs = _inputs_of(network)
    rates = {name: rate for name, _, rate in subject._dropouts} if job.quantity is Quantity.DROPOUT else {}
    outputs = subject.predict(network.arrays)
    alone = None
    if failing is not None:
        name, module = failing
        text = f"nn.Dropout(p={rates[name]:.6g})" if name in rates else _text(module)
        alone = LayerPart(name=name, text=text, given=inputs.get(name), rate=rates.get(name))
    return NetworkParts(
        version=version_of("mlx", mx) or "",
        chain=_chain(subject.recipe.model, inputs),
        failing=alone if alone is not None and alone.text else None,
        loss=_function_text(subject.recipe.loss) if len(targets) == 1 else "",
        targets=array_part(targets[0]) if len(targets) == 1 else None,
        outputs=array_part(outputs[0][1]) if len(outputs) == 1 else None,
        parameter=parameter_part(network, job.name, _optimizer_text(subject._optimizers[0]))
        if job.quantity is Quantity.OPTIMIZER and subject._optimizers
        else None,
    )


def _chain(model: Any, inputs: dict[str, TensorPart]) -> tuple[LayerPart, ...]:
    """Return the layers of a network that is a sequence of MLX' own; nothing of any other."""
    if type(model) is not nn.Sequential:
        return ()
    found = []
    for number, layer in enumerate(model.layers):
        name = f"layers.{number}"
        text = _text(layer) if isinstance(layer, nn.Module) else _function_text(layer)
        if not text:
            return ()
        found.append(LayerPart(name=name, text=text, given=inputs.get(name)))
    return tuple(found)


def _layer_of(subject: MlxSubject, name: str) -> tuple[str, Any] | None:
    """Return the layer that a quantity's name belongs to: "layers.0.weight" or "layers.0"."""
    found = [
        (each, module)
        for each, module in subject._modules()
        if each and is_leaf(module) and (name == each or name.startswith((f"{each}.", f"{each}#", f"{each}[")))
    ]
    return max(found, key=lambda pair: len(pair[0]), default=None)


def _inputs_of(network: Network[MlxSubject]) -> dict[str, TensorPart]:
    found: dict[str, TensorPart] = {}

    def report(name: str, _module: Any, given: tuple[Any, ...], _output: Any) -> None:
        if len(given) == 1 and isinstance(given[0], mx.array):
            found.setdefault(name, array_part(as_numpy_array(given[0])))

    subject = network.subject
    with subject._watched(is_leaf, report):
        subject._run(subject.feeder.place(network.arrays), training=False)
    return found


def _text(module: Any) -> str:
    """Return the call that makes a layer of MLX' own; empty where its description is no such call. Of a class that is
    derived from one of MLX', that one is named: a script that it is in is tried before it is written."""
    base = next((each for each in type(module).__mro__ if each.__module__.startswith("mlx.nn.")), nn.Module)
    if base is nn.Module or not is_leaf(module):
        return ""
    text = repr(module).replace(type(module).__name__, base.__name__, 1)
    try:
        made = eval(f"nn.{text}", {"nn": nn})  # what MLX itself wrote
    except (AttributeError, NameError, SyntaxError, TypeError, ValueError):
        return ""
    return f"nn.{text}" if repr(made) == text else ""


def _function_text(function: Any) -> str:
    """Return an expression for one of MLX' functions, or for one with some arguments given; empty for any other."""
    plain = function.func if isinstance(function, partial) else function
    name = getattr(plain, "__name__", "")
    found = next((f"{word}.{name}" for word, module in MODULES.items() if getattr(module, name, None) is plain), "")
    if not found or not isinstance(function, partial):
        return found
    given = [found, *map(repr, function.args), *(f"{key}={value!r}" for key, value in function.keywords.items())]
    return f"partial({', '.join(given)})"


def _optimizer_text(optimizer: Any) -> str:
    kind = type(optimizer)
    if getattr(optimizers, kind.__name__, None) is not kind:
        return ""
    given = {"learning_rate": float(str(np.float32(optimizer.learning_rate.item())))}
    for name, parameter in inspect.signature(kind).parameters.items():
        value = getattr(optimizer, name, None)
        if name != "learning_rate" and value is not None and value != parameter.default:
            given[name] = value
    return f"optimizers.{kind.__name__}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


if __name__ == "__main__":
    answer(describe_network, sys.argv[1], sys.argv[2])
