"""A plain model of a user's file as a workload, for a first number: no Workload has to be written.

Its batches have the shape that --input-shape names, or come from the file's `example_batch`. There is no loss to train
with, so the outputs are drawn towards a fixed pattern: the work of a step is that of real training, its result is not.
"""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from metalmark.errors import UnsupportedError, UsageError
from metalmark.model.nest import first_leaf, map_leaves
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload

BASES = {("torch.nn", "Module"): "torch", ("keras", "Model"): "keras", ("mlx.nn", "Module"): "mlx"}
"""Whose class a model's is, by where that is defined; nothing has to be imported to see it."""
EXAMPLE = "example_batch"
TOKENS = 100
"""Whole numbers are drawn below this: nearly every embedding is at least as large."""
NOISE = 0.01
WANTED = f"Give --input-shape 3,224,224 (without the batch size), or define `{EXAMPLE}` in the file."


def family_of(kind: type) -> str | None:
    for base in kind.__mro__:
        for (module, name), family in BASES.items():
            if base.__name__ == name and base.__module__.split(".")[0] == module.split(".")[0]:
                return family
    return None


def made(target: Any, name: str) -> Any:
    """Return a model: the object itself, or what a class or function makes without arguments."""
    if family_of(type(target)) is not None:
        return target
    require_no_arguments(target, name)
    model = target()
    if family_of(type(model)) is None:
        raise UsageError(
            f"{name}() returns a {type(model).__name__}, not a model.",
            hint="Name a torch.nn.Module, keras.Model or mlx.nn.Module, a function that makes one, or a Workload.",
        )
    return model


def require_no_arguments(target: Any, name: str) -> None:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise UsageError(
            f"{name}() can't be called without arguments: {error}.",
            hint=f"Write a function without arguments that returns {name}(...), and name that.",
        ) from error


def plain_workload(target: Any, name: str, module: ModuleType) -> Workload | None:
    """Return the workload of a plain model, or of what makes one; None for anything else."""
    is_model_class = isinstance(target, type) and family_of(target) is not None
    is_function = callable(target) and not isinstance(target, type)
    if not is_model_class and not is_function:
        return None
    if is_model_class:
        require_no_arguments(target, name)
    family = family_of(target) if is_model_class else family_of(type(made(target, name)))
    assert family is not None
    example = getattr(module, EXAMPLE, None)
    example = example() if callable(example) else example
    batch_size = 32 if example is None else len(first_leaf(as_batch(example).inputs))

    def batch(params: Params, rng: np.random.Generator) -> Batch:
        if not params["input_shape"] and example is not None:
            return drawn(as_batch(example), int(params["batch_size"]), rng)
        shape = (int(params["batch_size"]), *parse_shape(str(params["input_shape"])))
        if params["input_dtype"] == "int32":
            return Batch(inputs=(rng.integers(0, TOKENS, shape, np.int32),))
        return Batch(inputs=(rng.standard_normal(shape, np.float32),))

    def build(params: Params) -> Recipe:
        uses_example = not params["input_shape"] and example is not None and as_batch(example).targets is not None
        make = import_module(f"{__name__}.on_{family}").recipe
        recipe: Recipe = make(made(target, name), with_targets=uses_example)
        return recipe

    return Workload(
        name=name,
        title=f"{name}, with a stand-in loss",
        params=(
            Param("batch_size", batch_size, "samples per step", minimum=1),
            Param("input_shape", "", "shape of one input, without the batch: 3,224,224", whole=True),
            Param("input_dtype", "float32", "of the input: whole numbers for tokens", choices=("float32", "int32")),
        ),
        build={family: build},
        batch=batch,
        notes=lambda _: (
            "The file gives no loss: outputs are drawn towards a fixed pattern with Adam, unless the model returns "
            "a loss of its own.",
        ),
    )


def as_batch(example: Any) -> Batch:
    """Return an example as a batch: one already, a pair of inputs and targets, or inputs alone."""
    if isinstance(example, Batch):
        return example
    if isinstance(example, tuple) and len(example) == 2:
        return Batch(inputs=one(example[0]), targets=example[1])
    return Batch(inputs=one(example))


def one(inputs: Any) -> Any:
    """A lone array is the one argument of its model."""
    return inputs if isinstance(inputs, (Mapping, tuple, list)) else (inputs,)


def drawn(batch: Batch, size: int, rng: np.random.Generator) -> Batch:
    """Return so many samples of an example, drawn at random. Numbers get a little noise, so that no two batches are
    the same."""
    chosen = rng.integers(0, len(first_leaf(batch.inputs)), size)

    def some(leaf: Any) -> np.ndarray:
        array: np.ndarray = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)[chosen]
        if array.dtype.kind != "f":
            return array
        noise = rng.standard_normal(array.shape, np.float32) * (NOISE * float(array.std()))
        return np.asarray(array + noise, array.dtype)

    return Batch(inputs=map_leaves(some, batch.inputs), targets=map_leaves(some, batch.targets))


def parse_shape(text: str) -> tuple[int, ...]:
    bare = text.strip("()[] ")
    if not bare:
        raise UnsupportedError("What one input looks like is not known.", hint=WANTED)
    words = [word.strip() for word in re.split("[,x]", bare.rstrip(","))]
    if not all(word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise UnsupportedError(f"--input-shape {text!r} is no shape.", hint="Write it as 3,224,224.")
    return tuple(int(word) for word in words)
