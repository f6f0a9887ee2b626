"""MLX's side of a check: the trainer that `train` uses, with its layers watched."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from mlx import core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from metalmark.backends.mlx import cast, statistics_of
from metalmark.backends.outputs import call, scores
from metalmark.errors import UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.nest import flatten
from metalmark.model.plan import Mode, Plan, Settings
from metalmark.model.workload import Recipe, Workload
from metalmark.parity.base import Dropped, Named, SameLoss, See, Slot, leaves_with_names, threads_stay, what_dropped
from metalmark.training.mlx import MlxTrainer, MlxTraining, as_numpy_array

DROPOUT = (nn.Dropout, nn.Dropout2d, nn.Dropout3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNELS_LAST = (
    *CONVOLUTIONS, *TRANSPOSED, nn.BatchNorm, nn.GroupNorm, nn.InstanceNorm, nn.Upsample,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
)  # fmt: skip
"""Modules whose outputs have their channels as the last axis, where PyTorch has them as the second."""
NO_DOUBLE = (
    "MLX has float64 on the CPU only, and computes exp, erf and convolutions of it no better than of float32 (mlx "
    "0.32: 3e-7, 2e-6 and 1e-6 off)."
)

Work = Callable[[Any], Any]
Report = Callable[[Any, tuple[Any, ...], Any], Any]
"""report(the module, its arguments, its output) returns what is used instead of the output; None: the output."""


class Reordering(NamedTuple):
    """How a parameter's own layout becomes PyTorch's, and back."""

    to_common: Callable[[np.ndarray], np.ndarray]
    to_own: Callable[[np.ndarray], np.ndarray]


class MlxSubject(MlxTrainer):
    def __init__(self, plan: Plan, workload: Workload) -> None:
        self._mode = plan.mode
        self._plain: Work
        self._held: list[Any]
        self._compiles = False
        self._works: dict[tuple[str, bool], Work] = {}
        super().__init__(plan, workload)
        several = len(self._models) > 1
        self._named = {f"{number}." if several else "": model for number, model in enumerate(self._models)}
        dropouts = [(name, module) for name, module in self._modules() if isinstance(module, DROPOUT)]
        self._dropouts = [(name, module, 1 - module._p_1) for name, module in dropouts]
        self._begin = [(each._initialized, _containers(each.state)) for each in self._optimizers]
        self._drops = True
        self.set_dropout(False)
        self._turns = self._layouts()

    def slots(self) -> tuple[Slot, ...]:
        statistics = self._prefixed(partial(statistics_of, wanted=lambda _: True))
        trainable = self._prefixed(lambda model: dict(tree_flatten(model.trainable_parameters())))
        found = [
            Slot(
                name=name,
                shape=self._turned(name, np.empty(array.shape, bool)).shape,
                statistic=name in statistics,
                trainable=name in trainable,
            )
            for name, array in self._parameters().items()
        ]
        return tuple(sorted(found, key=lambda slot: slot.statistic))

    def values(self) -> Named:
        arrays = self._parameters()
        return {slot.name: self._turned(slot.name, as_numpy_array(arrays[slot.name])) for slot in self.slots()}

    def load(self, values: Named) -> None:
        own = self._parameters()
        for prefix, model in self._named.items():
            arrays = [
                (name, self._own(f"{prefix}{name}", values[f"{prefix}{name}"]).astype(own[f"{prefix}{name}"].dtype))
                for name, _ in tree_flatten(model.parameters())
            ]
            model.load_weights(arrays)
            model.train(self._mode is Mode.TRAINING)
        for optimizer, (is_initialized, state) in zip(self._optimizers, self._begin, strict=True):
            # In place, since a compiled step holds this tree and no other.
            optimizer.state.clear()
            optimizer.state.update(_containers(state))
            optimizer._initialized = is_initialized
        mx.eval(self._state, [model.parameters() for model in self._models])

    def follow(self, framework: str) -> None:
        """Only PyTorch's optimisers follow another's conventions."""

    def set_dropout(self, on: bool) -> None:
        for _, module, rate in self._dropouts:
            module._p_1 = 1 - rate if on else 1
        self._drops = on
        self._work = self._planned("step", self._plain)

    def seed(self, seed: int) -> None:
        mx.random.seed(seed)

    def layers(self, arrays: Arrays, *, training: bool, see: See) -> None:
        images = _Images()

        def report(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
            is_image = images.includes(module, inputs, output)
            leaves, layout = flatten(output)
            for each, leaf in leaves_with_names(name, leaves, layout.names):
                if is_floating(leaf):
                    array = as_numpy_array(leaf)
                    see(each, np.moveaxis(array, -1, 1) if is_image else array)

        with self._watched(is_leaf, report):
            self._run(self.feeder.place(arrays), training=training)

    def dropped(self, arrays: Arrays) -> list[Dropped]:
        found: list[Dropped] = []
        rates = {name: rate for name, _, rate in self._dropouts}

        def report(name: str, _module: Any, inputs: tuple[Any, ...], output: Any) -> None:
            before, after = (as_numpy_array(array).astype(np.float32) for array in (inputs[0], output))
            found.append(what_dropped(name, rates[name], before, after))

        self.set_dropout(True)
        try:
            with self._watched(lambda module: isinstance(module, DROPOUT), report):
                self._run(self.feeder.place(arrays), training=True)
        finally:
            self.set_dropout(False)
        return [each for each in found if each.elements]

    def predict(self, arrays: Arrays) -> list[tuple[str, np.ndarray]]:
        if not callable(self.recipe.model):
            return []
        placed = self.feeder.place(arrays)
        # Nothing is computed for these names: MLX knows shapes and forms before it computes.
        layout = flatten(scores(self._run(placed, training=False)))[1]
        if self._mode is Mode.INFERENCE:
            leaves = self._work(placed)
        else:

            def infer(leaves: Any) -> list[Any]:
                return flatten(scores(self._run(leaves, training=False)))[0]

            leaves = self._planned("infer", infer)(placed)
        mx.eval(leaves)
        named = leaves_with_names("", leaves, layout.names)
        return [(name, as_numpy_array(leaf)) for name, leaf in named if is_floating(leaf)]

    def loss_and_gradients(self, arrays: Arrays) -> tuple[float, Named]:
        if self.recipe.step is not None:
            (loss,) = self.read([self.train_batch(arrays)])
            return loss, {}
        (optimizer,) = self._optimizers

        def differentiate(leaves: Any) -> tuple[Any, Any]:
            """Take the very step of training, up to its optimiser."""
            given: list[Any] = []
            optimizer.update = lambda _model, gradients: given.append(gradients)
            try:
                (loss,) = self._plain(leaves)
            finally:
                del optimizer.update
            return loss, given[0]

        loss, gradients = self._planned("gradients", differentiate)(self.feeder.place(arrays))
        mx.eval(loss, gradients, self._state)
        return float(loss.item()), {
            name: self._turned(name, as_numpy_array(array)) for name, array in tree_flatten(gradients)
        }

    def apply(self, gradients: Named) -> None:
        (optimizer,), (model,) = self._optimizers, self._models
        tree = [
            (name, self._own(name, gradients[name]).astype(array.dtype) if name in gradients else mx.zeros_like(array))
            for name, array in tree_flatten(model.trainable_parameters())
        ]
        optimizer.update(model, tree_unflatten(tree))
        mx.eval(self._state)

    def _make_work(self, recipe: Recipe, settings: Settings, half: Any | None) -> tuple[Work, list[Any]]:
        self._plain, state = super()._make_work(recipe, msgspec.structs.replace(settings, compile=False), half)
        self._compiles = settings.compile
        self._held = state or [model.state for model in self._models]
        return self._plain, state

    def _planned(self, name: str, work: Work) -> Work:
        """Return a function of a batch's leaves as the settings say: compiled, or as it is. What was compiled keeps the
        dropout that it was compiled with, so there are two of each."""
        if not self._compiles:
            return work
        if (name, self._drops) not in self._works:
            # MLX knows a compiled function by the function that it was made from, so each needs one of its own.
            own = partial(work)
            self._works[name, self._drops] = mx.compile(own, inputs=self._held, outputs=self._held)
        return self._works[name, self._drops]

    def _run(self, leaves: Any, *, training: bool) -> Any:
        """Run forward in the dtype that the settings say."""
        masters = [model.trainable_parameters() for model in self._models]
        for model, mine in zip(self._models, masters, strict=True):
            model.train(training)
            model.update(cast(mine, self._half))
        try:
            return call(self.recipe.model, self.layout.rebuild(cast(leaves, self._half))["inputs"])
        finally:
            for model, mine in zip(self._models, masters, strict=True):
                model.update(mine)
                model.train(self._mode is Mode.TRAINING)

    def _modules(self) -> list[tuple[str, Any]]:
        """Return each module once, by its name."""
        seen: dict[int, tuple[str, Any]] = {}
        for prefix, model in self._named.items():
            for name, module in model.named_modules():
                seen.setdefault(id(module), (f"{prefix}{name}", module))
        return list(seen.values())

    def _prefixed(self, arrays_of: Callable[[Any], dict[str, Any]]) -> set[str]:
        return {f"{prefix}{name}" for prefix, model in self._named.items() for name in arrays_of(model)}

    def _turned(self, name: str, array: np.ndarray) -> np.ndarray:
        turn = self._turns.get(name)
        return array if turn is None else np.ascontiguousarray(turn.to_common(array))

    def _own(self, name: str, array: np.ndarray) -> Any:
        turn = self._turns.get(name)
        own = np.ascontiguousarray(array if turn is None else turn.to_own(array))
        return mx.array(own)

    def _layouts(self) -> dict[str, Reordering]:
        turns: dict[str, Reordering] = {}
        for name, module in self._modules():
            if isinstance(module, CONVOLUTIONS):
                turns[_weight(name)] = Reordering(
                    partial(_move, before=-1, after=1), partial(_move, before=1, after=-1)
                )
            elif isinstance(module, TRANSPOSED):
                turns[_weight(name)] = Reordering(
                    partial(_move, before=-1, after=0), partial(_move, before=0, after=-1)
                )
        if self._mode is Mode.TRAINING and not callable(self.recipe.model):
            return turns
        images = _Images()

        def report(name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
            image = images.flattened(inputs)
            if isinstance(module, nn.Linear) and image is not None:
                turns[_weight(name)] = _flattening(image)
            images.includes(module, inputs, output)

        # Nothing is computed here: MLX knows the shapes before it computes.
        placed = self.feeder.ring[0]
        for leaf in placed:
            images.see(leaf)
        with self._watched(is_leaf, report):
            self._run(placed, training=False)
        return turns

    @contextmanager
    def _watched(self, wanted: Callable[[Any], bool], report: Callable[..., Any]) -> Iterator[None]:
        """Report what each wanted module gives. Python looks a call up on the type, so each gets a type of its own."""
        watched = [(name, module, type(module)) for name, module in self._modules() if wanted(module)]
        for name, module, kind in watched:
            module.__class__ = _watching(kind, partial(report, name))
        try:
            yield
        finally:
            for _, module, kind in watched:
                module.__class__ = kind


class _Images:
    """Which arrays have height, width and channels, as far as the modules that were watched tell."""

    def __init__(self) -> None:
        self._last: Any = None

    def see(self, array: Any) -> None:
        if array.ndim == 4:
            self._last = array

    def includes(self, module: Any, inputs: tuple[Any, ...], output: Any) -> bool:
        """Whether a module's output has its channels last: by its kind, or because it follows one that has."""
        is_array = isinstance(output, mx.array) and output.ndim > 2
        follows = self._last is not None and any(each is self._last for each in inputs)
        found = is_array and (follows or isinstance(module, CHANNELS_LAST))
        if found:
            self._last = output
        return found

    def flattened(self, inputs: tuple[Any, ...]) -> tuple[int, ...] | None:
        """Return (height, width, channels) where these inputs are the last image as rows of numbers."""
        if self._last is None or self._last.ndim < 3 or not inputs or inputs[0].ndim != 2:
            return None
        image = tuple(self._last.shape[1:])
        same = inputs[0].shape[1] == math.prod(image) and math.prod(image[:-1]) > 1
        self._last = None
        return image if same else None


class MlxSide(SameLoss, MlxTraining):
    session = MlxSubject

    def open(self, plan: Plan, workload: Workload, *, double: bool = False) -> AbstractContextManager[MlxSubject]:  # type: ignore[override]
        if double:
            raise UnsupportedError(NO_DOUBLE)
        return super().open(plan, workload)  # type: ignore[return-value]

    def fewer_threads(self) -> AbstractContextManager[bool]:
        return threads_stay()


def _watching(kind: Any, report: Report) -> Any:
    def watched(self: Any, *inputs: Any, **options: Any) -> Any:
        output = kind.__call__(self, *inputs, **options)
        other = report(self, (*inputs, *options.values()), output)
        return output if other is None else other

    return type(kind.__name__, (kind,), {"__call__": watched})


def is_leaf(module: Any) -> bool:
    return all(each is module for each in module.modules())


def is_floating(leaf: Any) -> bool:
    return isinstance(leaf, mx.array) and mx.issubdtype(leaf.dtype, mx.floating)


def _weight(module: str) -> str:
    return f"{module}.weight".removeprefix(".")


def _move(array: np.ndarray, before: int, after: int) -> np.ndarray:
    return np.moveaxis(array, before, after)


def _flattening(image: tuple[int, ...]) -> Reordering:
    """Return the turn of a dense layer that follows a flattened image: PyTorch has its channels before its pixels."""
    *pixels, channels = image

    def to_common(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array.reshape(-1, *image), -1, 1).reshape(array.shape)

    def to_own(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array.reshape(-1, channels, *pixels), 1, -1).reshape(array.shape)

    return Reordering(to_common, to_own)


def _containers(tree: Any) -> Any:
    """Copy the dicts and lists of a tree of arrays, which are never changed themselves."""
    return tree_map(lambda array: array, tree)


SIDE = MlxSide()
