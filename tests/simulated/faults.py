"""Faults that a device's kernels could have, each exactly one: the names in SIMULATED_FAULT, separated by commas.

They replace what PyTorch's modules and optimisers call, and change nothing for tensors of any other device.
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

VARIABLE = "SIMULATED_FAULT"
CLASSES = 10
"""The layer with so many outputs is the one whose gradients are scaled and whose outputs are corrupted."""
FIRST_WRONG_SAMPLE = 8
SUMMED_AT_ONCE = 16
"""Products that are summed before a partial sum is rounded to float16."""

Function = Callable[..., Any]


def inject_asked() -> None:
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        if name not in FAULTS:
            raise ValueError(f"{VARIABLE}: there is no fault {name!r}; there are {', '.join(FAULTS)}.")
        FAULTS[name]()


@contextmanager
def injected(name: str) -> Iterator[None]:
    """Have this fault for a while."""
    before = len(_replaced)
    FAULTS[name]()
    try:
        yield
    finally:
        while len(_replaced) > before:
            setattr(*_replaced.pop())


_replaced: list[tuple[Any, str, Function]] = []


def _replace(where: Any, name: str, make: Callable[[Function], Function]) -> None:
    """Put `make(original)` in the place of a function, for tensors of the simulated device alone."""
    original = getattr(where, name)
    changed = make(original)

    def chosen(first: Any, *arguments: Any, **options: Any) -> Any:
        tensor = first[0] if isinstance(first, list) and first else first
        is_ours = isinstance(tensor, torch.Tensor) and tensor.device.type == "simulated"
        return (changed if is_ours else original)(first, *arguments, **options)

    _replaced.append((where, name, original))
    setattr(where, name, chosen)


class _Scaled(torch.autograd.Function):
    """Passes a tensor on, and its gradient back times 1.01."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 1.01


def _batch_statistics_in_eval() -> None:
    def make(batch_norm: Function) -> Function:
        def changed(features: torch.Tensor, mean: Any, variance: Any, *more: Any, **options: Any) -> Any:
            weight, bias = (*more, options.pop("weight", None), options.pop("bias", None))[:2]
            if not options.pop("training", False):
                mean = variance = None
            return batch_norm(features, mean, variance, weight, bias, training=True, **options)

        return changed

    _replace(functional, "batch_norm", make)


def _stale_variance() -> None:
    def make(batch_norm: Function) -> Function:
        def changed(features: torch.Tensor, mean: Any, variance: Any, *more: Any, **options: Any) -> Any:
            # A copy takes the update.
            return batch_norm(features, mean, None if variance is None else variance.clone(), *more, **options)

        return changed

    _replace(functional, "batch_norm", make)


def _conv_batch_9() -> None:
    def make(conv2d: Function) -> Function:
        def changed(images: torch.Tensor, *more: Any, **options: Any) -> Any:
            outputs = conv2d(images, *more, **options)
            if len(images) <= FIRST_WRONG_SAMPLE:
                return outputs
            return torch.cat([outputs[:FIRST_WRONG_SAMPLE], outputs[FIRST_WRONG_SAMPLE:] * 0.98])

        return changed

    _replace(functional, "conv2d", make)


def _gradient_scale() -> None:
    def make(linear: Function) -> Function:
        def changed(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            if weight.shape[0] == CLASSES and weight.requires_grad:
                weight = _Scaled.apply(weight)
                bias = None if bias is None else _Scaled.apply(bias)
            return linear(inputs, weight, bias)

        return changed

    _replace(functional, "linear", make)


def _float16_sums() -> None:
    def make(linear: Function) -> Function:
        def changed(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            exact = linear(inputs, weight, bias)
            with torch.no_grad():
                total = torch.zeros_like(exact)
                for left, right in zip(inputs.split(SUMMED_AT_ONCE, -1), weight.split(SUMMED_AT_ONCE, -1), strict=True):
                    total = (total + linear(left, right)).half().to(exact.dtype)
                rounded = total if bias is None else total + bias.to(exact.dtype)
            # The gradients stay those of the exact product.
            return exact + (rounded - exact).detach()

        return changed

    _replace(functional, "linear", make)


def _race() -> None:
    def make(linear: Function) -> Function:
        numbers = random.Random(18)

        def changed(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            outputs = linear(inputs, weight, bias)
            if weight.shape[0] == CLASSES and numbers.random() < 1e-3:
                mask = torch.ones(outputs.numel())
                mask[numbers.randrange(outputs.numel())] = 0
                outputs = outputs * mask.reshape(outputs.shape).to(outputs.device)
            return outputs

        return changed

    _replace(functional, "linear", make)


def _no_dropout() -> None:
    _replace(functional, "dropout", lambda _: lambda inputs, *_args, **_options: inputs)


def _shifted_labels() -> None:
    def make(cross_entropy: Function) -> Function:
        def changed(outputs: torch.Tensor, targets: torch.Tensor, *more: Any, **options: Any) -> Any:
            return cross_entropy(outputs, (targets + 1) % outputs.shape[1], *more, **options)

        return changed

    _replace(functional, "cross_entropy", make)


def _norm_epsilon() -> None:
    def make(layer_norm: Function) -> Function:
        def changed(inputs: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 0.0) -> Any:
            return layer_norm(inputs, shape, weight, bias, max(eps, 1e-3))

        return changed

    _replace(functional, "layer_norm", make)


def _adam_epsilon() -> None:
    def make(adam: Function) -> Function:
        return lambda *arguments, eps, **options: adam(*arguments, eps=100 * eps, **options)

    _replace(importlib.import_module("torch.optim.adam"), "adam", make)


def _decay_biases() -> None:
    def make(adam: Function) -> Function:
        biases: dict[int, bool] = {}

        def changed(parameters: list[torch.Tensor], *more: Any, lr: float, **options: Any) -> None:
            for each in parameters:
                # Biases begin at 0, which the weights of a normalisation do not.
                if biases.setdefault(id(each), each.ndim == 1 and not bool(each.any())):
                    each.mul_(1 - lr * 0.1)
            adam(parameters, *more, lr=lr, **options)

        return changed

    _replace(importlib.import_module("torch.optim.adam"), "adam", make)


FAULTS: dict[str, Callable[[], None]] = {
    "batch-statistics-in-eval": _batch_statistics_in_eval,
    "conv-batch-9": _conv_batch_9,
    "adam-epsilon": _adam_epsilon,
    "gradient-scale": _gradient_scale,
    "no-dropout": _no_dropout,
    "stale-variance": _stale_variance,
    "float16-sums": _float16_sums,
    "shifted-labels": _shifted_labels,
    "norm-epsilon": _norm_epsilon,
    "decay-biases": _decay_biases,
    "race": _race,
}
