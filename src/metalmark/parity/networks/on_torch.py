"""Describes a PyTorch network: which of its layers are PyTorch's own, how each is made and what it is given.

`python -m metalmark.parity.networks.on_torch JOB ANSWER`.
"""

import inspect
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from metalmark.backends.outputs import call, given_loss, scores
from metalmark.backends.torch_compiler import compile_options
from metalmark.model.nest import flatten
from metalmark.model.parity import Quantity
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart, PartJob, TensorPart
from metalmark.parity.networks.question import Network, answer
from metalmark.parity.torch import TorchSubject

OWN_LAYOUT = ("layout_optimization", True)


def describe_network(network: Network[TorchSubject], job: PartJob) -> NetworkParts:
    subject = network.subject
    batch = subject.layout.rebuild(subject.feeder.place(network.arrays))
    model = subject._model
    chain = _chain(model)
    failing = _layer_of(model, job.name) if job.name else None
    inputs = _inputs_of([each for _, each in chain] + ([failing[1]] if failing is not None else []), subject, batch)
    is_dropout = job.quantity is Quantity.DROPOUT
    rates = {id(module): rate for _, module, rate in subject._dropouts} if is_dropout else {}
    loss = subject.recipe.loss
    with torch.no_grad(), subject._cast():
        outputs = flatten(scores(call(model, batch["inputs"])))[0]
    targets = flatten(batch.get("targets"))[0]
    # A layout of PyTorch's own choice is left out here.
    options = {name: value for name, value in compile_options(network.settings).items() if (name, value) != OWN_LAYOUT}
    listed = ", ".join(f'"{name}": {value}' for name, value in options.items())
    return NetworkParts(
        version=str(torch.__version__),
        chain=tuple(_layer_part(name, module, inputs) for name, module in chain),
        failing=_layer_part(*failing, inputs, rates.get(id(failing[1])))
        if failing is not None and _text(failing[1])
        else None,
        loss=_text(loss) if isinstance(loss, nn.Module) and len(targets) == 1 else "",
        targets=_tensor_part(targets[0]) if len(targets) == 1 else None,
        outputs=_tensor_part(outputs[0]) if len(outputs) == 1 else None,
        parameter=_parameter_part(subject, batch, job.name) if job.quantity is Quantity.OPTIMIZER else None,
        compile=", dynamic=False" + (f", options={{{listed}}}" if options else ""),
    )


def _chain(model: nn.Module, before: str = "") -> list[tuple[str, nn.Module]]:
    """Return the layers of a network that is a sequence of PyTorch's own; nothing of any other."""
    if type(model) is not nn.Sequential:
        return []
    found: list[tuple[str, nn.Module]] = []
    for name, child in model.named_children():
        inner = _chain(child, f"{before}{name}.") if type(child) is nn.Sequential else [(f"{before}{name}", child)]
        if not inner or not all(_text(module) for _, module in inner):
            return []
        found += inner
    return found


def _layer_of(model: nn.Module, name: str) -> tuple[str, nn.Module] | None:
    """Return the layer that a quantity's name belongs to: "0.weight", "encoder.1#2" or "lstm[0]"."""
    found = [
        (each, module)
        for each, module in model.named_modules()
        if name == each or name.startswith((f"{each}.", f"{each}#", f"{each}["))
    ]
    leaves = [(each, module) for each, module in found if each and not any(module.children())]
    return max(leaves, key=lambda pair: len(pair[0]), default=None)


def _text(module: nn.Module) -> str:
    """Return the call that makes a layer of PyTorch's own; empty where its description is no such call. Of a class that
    is derived from one of PyTorch's, that one is named: a script that it is in is tried before it is written."""
    base = next((each for each in type(module).__mro__ if each.__module__.startswith("torch.nn.modules.")), nn.Module)
    if base is nn.Module or any(module.children()):
        return ""
    text = repr(module).replace(type(module).__name__, base.__name__, 1)
    try:
        made = eval(f"nn.{text}", {"nn": nn})  # what PyTorch itself wrote
    except (AttributeError, NameError, SyntaxError, TypeError, ValueError):
        return ""
    return f"nn.{text}" if repr(made) == text else ""


def _inputs_of(modules: Sequence[nn.Module], subject: TorchSubject, batch: dict[str, Any]) -> dict[int, TensorPart]:
    found: dict[int, TensorPart] = {}

    def see(module: nn.Module, given: Any) -> None:
        tensors = flatten(given)[0]
        if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor):
            found.setdefault(id(module), _tensor_part(tensors[0]))

    handles = [module.register_forward_pre_hook(see) for module in modules]
    try:
        with subject._cast():
            call(subject._model, batch["inputs"])
    finally:
        for handle in handles:
            handle.remove()
    return found


def _layer_part(name: str, module: nn.Module, inputs: dict[int, TensorPart], rate: float | None = None) -> LayerPart:
    """`rate`: of a dropout layer that is to drop as it did before the check switched it off."""
    text = _text(module)
    if rate is not None:
        text = text.replace("p=0.0", f"p={rate}")
    return LayerPart(name=name, text=text, given=inputs.get(id(module)), rate=rate)


def _tensor_part(tensor: torch.Tensor) -> TensorPart:
    integer = not tensor.is_floating_point()
    return TensorPart(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        high=int(tensor.max()) + 1 if integer and tensor.numel() else 0,
        needs_gradient=tensor.requires_grad,
    )


def _parameter_part(subject: TorchSubject, batch: dict[str, Any], name: str) -> ParameterPart | None:
    parameter = dict(subject._model.named_parameters()).get(name)
    optimizer = subject._optimizers[0] if subject._optimizers else None
    if parameter is None or optimizer is None or not type(optimizer).__module__.startswith("torch.optim"):
        return None
    group = next((g for g in optimizer.param_groups if any(each is parameter for each in g["params"])), None)
    if group is None:
        return None
    values = parameter.detach().cpu().double().numpy()
    with subject._cast():
        loss = given_loss(subject.recipe, call(subject._model, batch["inputs"]), batch["targets"])
    loss.backward()
    gradient = parameter.grad
    size = math.sqrt(float(gradient.detach().cpu().double().square().mean())) if gradient is not None else 1.0
    known = inspect.signature(type(optimizer)).parameters
    options = [
        f"{key}={value!r}"
        for key, value in group.items()
        if key in known and key != "params" and value != known[key].default
    ]
    return ParameterPart(
        shape=tuple(parameter.shape),
        size=float(np.sqrt(np.mean(np.square(values)))),
        gradient_size=size,
        optimizer=f"torch.optim.{type(optimizer).__name__}({', '.join(['[parameter]', *options])})",
    )


if __name__ == "__main__":
    answer(describe_network, sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; nothing that PyTorch would do at its end is needed
