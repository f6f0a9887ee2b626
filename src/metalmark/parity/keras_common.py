"""What TensorFlow's and JAX's sides share by sharing Keras 3: which arrays a network holds and in which layout, its
dropout, and how its layers are looked at while it runs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import flatten
from metalmark.model.workload import Recipe
from metalmark.parity.base import Dropped, Named, See, Slot, leaves_with_names, what_dropped
from metalmark.training.base import keras_names

STRENGTHS = {
    keras.layers.Dropout: "rate",
    keras.layers.AlphaDropout: "rate",
    keras.layers.GaussianDropout: "rate",
    keras.layers.GaussianNoise: "stddev",
}
"""Layers that draw random numbers in training, and the attribute that switches them off at 0."""
ELEMENTWISE = (keras.layers.Dropout, keras.layers.Activation, keras.layers.ReLU)
"""Layers that leave the order of their inputs as it is."""
CONVOLUTIONS = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)
DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
Wrapper = Callable[[Any, str, Callable[..., Any]], Callable[..., Any]]
"""wrapper(layer, its name, its `call`) returns what is called instead."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How an array of Keras becomes one of the common layout: split its axes, put them in order, join them."""

    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    common: tuple[int, ...]

    def to_common(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.reshape(self.split).transpose(self.order).reshape(self.common))

    def from_common(self, array: np.ndarray) -> np.ndarray:
        parts = array.reshape([self.split[axis] for axis in self.order])
        return np.ascontiguousarray(parts.transpose(np.argsort(self.order)).reshape(self.shape))


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A slot, the Keras variable that it is, and how its array is turned."""

    slot: Slot
    variable: Any
    turn: Turn


class KerasSubject(ABC):
    """What a subject does whatever Keras runs on. It stands before a trainer in the list of bases."""

    recipe: Recipe
    _work: Any

    def _look_at(self, models: Sequence[Any]) -> None:
        """Find what the models hold, and switch their dropout off. To be called once they are built."""
        self._looked_at = list(models)
        self._holdings = holdings_of(models)
        self._slot_names = {id(holding.variable): holding.slot.name for holding in self._holdings}
        self._turns = {id(holding.variable): holding.turn for holding in self._holdings}
        self._random_layers = [
            (layer, attribute, getattr(layer, attribute))
            for layer in self._layer_names()
            for kind, attribute in STRENGTHS.items()
            if isinstance(layer, kind)
        ]
        # A function is traced with the dropout of that moment, so there is one for each. This one is not traced yet.
        self._works = {False: self._work}
        self._dropping = True
        self.set_dropout(False)

    def slots(self) -> tuple[Slot, ...]:
        return tuple(holding.slot for holding in self._holdings)

    def values(self) -> Named:
        found = self._current()
        return {
            holding.slot.name: holding.turn.to_common(as_float(found[id(holding.variable)]))
            for holding in self._holdings
        }

    def follow(self, framework: str) -> None:
        """Only PyTorch's optimisers follow another's conventions."""
        del framework

    def set_dropout(self, on: bool) -> None:
        if on not in self._works:
            self._works[on] = self._untraced()
        self._dropping, self._work = on, self._works[on]
        for layer, attribute, strength in self._random_layers:
            setattr(layer, attribute, strength if on else 0.0)

    def layers(self, arrays: Arrays, *, training: bool, see: See) -> None:
        def wrapper(_: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*given: Any, **options: Any) -> Any:
                output = call(*given, **options)
                leaves, layout = flatten(output)
                for each, leaf in leaves_with_names(name, leaves, layout.names):
                    if self._is_computed(leaf) and is_float(leaf):
                        see(each, as_float(leaf))
                return output

            return called

        with self._wrapped(is_leaf, wrapper):
            self._forward(arrays, training=training)

    def dropped(self, arrays: Arrays) -> list[Dropped]:
        found: list[Dropped] = []

        def wrapper(layer: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def called(inputs: Any, *given: Any, **options: Any) -> Any:
                output = call(inputs, *given, **options)
                if self._is_computed(output):
                    found.append(what_dropped(name, float(layer.rate), as_float(inputs), as_float(output)))
                return output

            return called

        before = self._dropping
        self.set_dropout(True)
        try:
            with self._wrapped(drops_elements, wrapper):
                self._forward(arrays, training=True)
        finally:
            self.set_dropout(before)
        return [each for each in found if each.elements]

    def _layer_names(self) -> dict[Any, str]:
        found: dict[Any, str] = {}
        for model in self._looked_at:
            _name_layers(model, "", found)
        return found

    @contextmanager
    def _wrapped(self, wanted: Callable[[Any], bool], wrapper: Wrapper) -> Iterator[None]:
        """Put something between the layers and whoever calls them, for a while."""
        chosen = {layer: name for layer, name in self._layer_names().items() if wanted(layer)}
        for layer, name in chosen.items():
            # Not by setattr: Keras looks at what becomes an attribute of a layer.
            layer.__dict__["call"] = wrapper(layer, name, layer.call)
        try:
            yield
        finally:
            for layer in chosen:
                del layer.__dict__["call"]

    def _given_arrays(self, values: Named) -> dict[int, np.ndarray]:
        """Return arrays of the common layout as those of the Keras variables, by the variables' identities."""
        return {
            id(holding.variable): holding.turn.from_common(np.asarray(values[holding.slot.name]))
            for holding in self._holdings
        }

    def _own_gradients(self, gradients: Named, variables: Sequence[Any], scale: float) -> list[np.ndarray]:
        """Return gradients of the common layout for these variables, multiplied; zeros where there is none."""
        found = []
        for variable in variables:
            name, dtype = self._slot_names[id(variable)], variable.dtype
            if name in gradients:
                found.append((self._turns[id(variable)].from_common(gradients[name]) * scale).astype(dtype))
            else:
                found.append(np.zeros(variable.shape, dtype))
        return found

    def _common_gradients(self, variables: Sequence[Any], gradients: Sequence[Any], scale: float) -> Named:
        return {
            self._slot_names[id(variable)]: self._turns[id(variable)].to_common(as_float(gradient)) / scale
            for variable, gradient in zip(variables, gradients, strict=True)
        }

    @abstractmethod
    def _current(self) -> dict[int, Any]:
        """Return the arrays of all of the models' variables now, by the variables' identities."""

    @abstractmethod
    def _forward(self, arrays: Arrays, *, training: bool) -> None:
        """Run the network, not compiled."""

    @abstractmethod
    def _untraced(self) -> Any:
        """Return the session's step as a function that is not traced yet."""

    @abstractmethod
    def _is_computed(self, array: Any) -> bool:
        """Whether it has values, and does not stand for those of a traced function."""


def holdings_of(models: Sequence[Any]) -> list[Holding]:
    """Return parameters in the order of the network, frozen ones too, and then the statistics of BatchNormalization."""
    owners: dict[int, Any] = {}
    statistics: set[int] = set()
    for model in models:
        for layer in model._flatten_layers():
            owners |= {id(variable): layer for variable in layer._trainable_variables}
            if isinstance(layer, keras.layers.BatchNormalization):
                moving = (layer.moving_mean, layer.moving_variance)
                owners |= {id(variable): layer for variable in moving}
                statistics |= set(map(id, moving))
    found = list({id(v): v for model in models for v in model.variables if id(v) in owners}.values())
    found.sort(key=lambda variable: id(variable) in statistics)
    trained = {id(variable) for model in models for variable in model.trainable_variables}
    holdings = []
    for variable, name in zip(found, keras_names("", found), strict=True):
        turn = turn_of(owners[id(variable)], variable)
        slot = Slot(
            name=name, shape=turn.common, statistic=id(variable) in statistics, trainable=id(variable) in trained
        )
        holdings.append(Holding(slot=slot, variable=variable, turn=turn))
    return holdings


def turn_of(layer: Any, variable: Any) -> Turn:
    """Return how a layer's variable is turned to PyTorch's layout. What is not known stays as it is."""
    shape = tuple(int(size) for size in variable.shape)
    axes = tuple(range(len(shape)))
    kernel = variable.name == "kernel"
    split, order, common = shape, axes, shape
    if isinstance(layer, keras.layers.EinsumDense):
        outputs = _output_axes(layer) if kernel else axes
        order = (*outputs, *(axis for axis in axes if axis not in outputs))
        sizes = [shape[axis] for axis in order]
        joined = math.prod(sizes[: len(outputs)]), math.prod(sizes[len(outputs) :])
        common = joined if kernel else joined[:1]
    elif isinstance(layer, keras.layers.Dense) and kernel:
        image = _flattened_image(layer)
        order, common = (1, 0), (shape[1], shape[0])
        if image is not None:
            split, order = (*image, shape[1]), (3, 2, 0, 1)
    elif isinstance(layer, DEPTHWISE) and kernel:
        # An output per channel and multiplier.
        order = (*axes[-2:], *axes[:-2])
        common = (shape[-2] * shape[-1], 1, *shape[:-2])
    elif isinstance(layer, CONVOLUTIONS) and kernel:
        order = (axes[-1], axes[-2], *axes[:-2])
        common = tuple(shape[axis] for axis in order)
    return Turn(shape=shape, split=split, order=order, common=common)


def _output_axes(layer: Any) -> tuple[int, ...]:
    """Return which axes of an EinsumDense kernel count its outputs: those that its inputs have not."""
    inputs, _, kernel = layer.equation.partition("->")[0].partition(",")
    return tuple(axis for axis, letter in enumerate(kernel.strip()) if letter not in inputs)


def _flattened_image(layer: Any) -> tuple[int, int, int] | None:
    """Return height, width and channels where a dense layer's input is an image that was flattened."""
    while layer is not None and layer._inbound_nodes:
        given = layer._inbound_nodes[0].input_tensors[0]
        layer = given._keras_history.operation
        if isinstance(layer, keras.layers.Flatten):
            shape = layer._inbound_nodes[0].input_tensors[0].shape
            return tuple(shape[1:]) if len(shape) == 4 and None not in shape[1:] else None
        if not isinstance(layer, ELEMENTWISE):
            return None
    return None


def _name_layers(parent: Any, prefix: str, found: dict[Any, str]) -> None:
    """Name layers as their variables are: by the path at which they were built. Those that hold none have no path; the
    layers of a model do not bear its name in theirs."""
    for layer in parent._layers:
        if layer in found or isinstance(layer, keras.layers.InputLayer):
            continue
        found[layer] = layer.path or f"{prefix}{layer.name}"
        _name_layers(layer, prefix if isinstance(layer, keras.Model) else f"{found[layer]}/", found)


def is_leaf(layer: Any) -> bool:
    """Whether it computes itself rather than by layers within it. A recurrent layer runs its cell in a loop, which may
    be traced."""
    return isinstance(layer, keras.layers.RNN) or not layer._layers


def drops_elements(layer: Any) -> bool:
    """Whether it drops each element by itself: kinds that drop whole channels draw too few numbers to be counted."""
    return type(layer) is keras.layers.Dropout and layer.noise_shape is None


def is_float(array: Any) -> bool:
    return hasattr(array, "dtype") and "float" in keras.backend.standardize_dtype(array.dtype)


def as_float(array: Any) -> np.ndarray:
    """Return a copy in float64 where it is, else in float32: NumPy has no bfloat16 of its own."""
    found = np.asarray(keras.ops.convert_to_numpy(array))
    return np.array(found, np.float64 if found.dtype == np.float64 else np.float32)


def as_double(arrays: Arrays) -> Arrays:
    return tuple(array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays)


def compact(array: np.ndarray) -> np.ndarray:
    """Return the same values, as a view of one number where they are all alike: most of what an optimiser begins with
    is zeros."""
    if array.size > 1 and (array == array.flat[0]).all():
        return np.broadcast_to(np.array(array.flat[0]), array.shape)
    return np.array(array)


def compute_in_double(models: Sequence[Any]) -> None:
    """Let layers that ask for float32 whatever the policy, as those of logits do, compute in float64 as well."""
    for model in models:
        for layer in model._flatten_layers():
            if layer.compute_dtype == "float32":
                layer.dtype_policy = "float64"


def seed_generators(models: Sequence[Any]) -> list[Any]:
    return [generator for model in models for layer in model._flatten_layers() for generator in layer._seed_generators]


@contextmanager
def keras_restored() -> Iterator[None]:
    """Name layers from the beginning, so that two networks of one process have the same names; afterwards, put back
    which dtype layers are made in."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.utils.clear_session()
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


@contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let a method of one object be another function, for a while."""
    owner.__dict__[name] = function
    try:
        yield
    finally:
        del owner.__dict__[name]
